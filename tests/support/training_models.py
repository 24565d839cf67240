"""Small models with training information, written by hand: y = w x, and a step that moves w."""

from onnx.parser import parse_graph, parse_model

INFERENCE = """<ir_version: 8, opset_import: ["": 21, "ai.onnx.preview.training": 1]>
inference (float[N] x) => (float[N] y) <float w = {2.0}, int64 n = {3}> { y = Mul(w, x) }"""
INITIALIZATION = "start () => (float w0) { w0 = Constant <value = float {5.0}> () }"
ALGORITHM = """step (float[N] t) => (float w_new, float loss) <float rate = {0.5}> {
    e = Sub(y, t)
    ee = Mul(e, e)
    loss = ReduceMean <keepdims = 0> (ee)
    g = ai.onnx.preview.training.Gradient <xs = ["w"], zs = ["x", "t"], y = "loss"> (w, x, t)
    s = Mul(rate, g)
    w_new = Sub(w, s)
}"""


def by_hand(*entries, inference=INFERENCE):
    """A model with entries: initialization, algorithm and their bindings, each left out where it is None."""
    model = parse_model(inference)
    for initialization, algorithm, first, update in entries:
        info = model.training_info.add()
        if initialization:
            info.initialization.CopyFrom(parse_graph(initialization))
        if algorithm:
            info.algorithm.CopyFrom(parse_graph(algorithm))
        for field, binding in ((info.initialization_binding, first), (info.update_binding, update)):
            for key, value in binding:
                field.add(key=key, value=value)
    return model


WHOLE = (INITIALIZATION, ALGORITHM, [("w", "w0")], [("w", "w_new")])


def changed(initialization=INITIALIZATION, algorithm=ALGORITHM, first=WHOLE[2], update=WHOLE[3], **more):
    return by_hand((initialization, algorithm, first, update), **more)
