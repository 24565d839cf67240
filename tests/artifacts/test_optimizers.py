"""Optimizer models against the kernels of onnxruntime 1.19.2."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from training_artifacts import STORED

from ortpartial.artifacts.optimizers import AdamW, read_optimizer
from ortpartial.exceptions import ModelError
from ortpartial.graph import build, constant, variable
from ortpartial.runtime import Session

INPUTS = ["learning_rate", "step", "params", "gradients", "first_order_moments", "second_order_moments"]
ADAM = {"alpha": 0.8, "beta": 0.95, "epsilon": 1e-3, "weight_decay": 0.1}
CASES = {
    "SGD": ("SGDOptimizerV2", {}, None),
    "SGD clipped": ("SGDOptimizerV2", {}, 0.5),
    "SGD below the norm": ("SGDOptimizerV2", {}, 100.0),
    "AdamW of torch": ("AdamWOptimizer", {**ADAM, "adam_mode": 0, "correct_bias": 1}, None),
    "AdamW of transformers": ("AdamWOptimizer", {**ADAM, "adam_mode": 1, "correct_bias": 1}, 0.5),
    "AdamW without correction": ("AdamWOptimizer", {**ADAM, "adam_mode": 1, "correct_bias": 0}, None),
    "defaults": ("AdamWOptimizer", {}, None),
}


def make_model(op_type, attributes, max_norm, inputs=None):
    sequences = [helper.make_tensor_sequence_value_info(n, TensorProto.FLOAT, None) for n in INPUTS[2:]]
    numbers = [helper.make_tensor_value_info("learning_rate", TensorProto.FLOAT, [1]),
               helper.make_tensor_value_info("step", TensorProto.INT64, [1])]
    nodes, gradients = [], "gradients"
    if max_norm is not None:
        gradients = "clipped"
        nodes.append(helper.make_node("InplaceClipGradNorm", ["gradients"], [gradients], domain="com.microsoft",
                                      max_norm=max_norm))
    read = ["learning_rate", "params", gradients] if op_type != "AdamWOptimizer" else [
        *INPUTS[:3], gradients, *INPUTS[4:]]
    nodes.append(helper.make_node(op_type, inputs or read, ["done"], domain="com.microsoft", **attributes))
    outputs = [helper.make_tensor_value_info("done", TensorProto.BOOL, [1])]
    graph = helper.make_graph(nodes, "optimizer", [*numbers, *sequences], outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run(optimizer, rate, step, tensors):
    """Weights and momentums after a step."""
    named = {f"{kind}{i}": a for kind, arrays in tensors.items() for i, a in enumerate(arrays)}
    values = {n: variable(n, a.dtype, a.shape) for n, a in named.items()}
    outputs = {}
    clipped = optimizer.clip([values["g0"], values["g1"]])
    for i, g in enumerate(clipped):
        momentums = [values[f"{kind}{i}"] for kind in ("m", "v")[: len(optimizer.momentums)]]
        new = optimizer.update(values[f"w{i}"], g, momentums, constant(np.float32(rate)), constant(step))
        outputs |= {f"{kind}{i}_new": v for kind, v in zip(("w", "m", "v"), new, strict=False)}
    session = Session(build(values, outputs))
    return session.run({n: named[n] for n in session.inputs})


@pytest.mark.agent
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("step", [0, 41])
def test_steps_are_those_of_the_kernels(case, step, rng):
    import onnxruntime as ort

    model = make_model(*CASES[case])
    shapes = [(3, 4), (5,)]
    tensors = {kind: [rng.standard_normal(s).astype(np.float32) for s in shapes] for kind in "wgmv"}
    tensors["v"] = [np.abs(a) for a in tensors["v"]]
    optimizer = read_optimizer(model)
    ours = run(optimizer, 0.1, np.int64(step), tensors)

    copies = {kind: [a.copy() for a in arrays] for kind, arrays in tensors.items()}
    sequences = {}
    for name, kind in zip(INPUTS[2:], "wgmv", strict=True):
        values = ort.capi._pybind_state.OrtValueVector()
        for a in copies[kind]:
            values.push_back(ort.OrtValue.ortvalue_from_numpy(a)._ortvalue)
        sequences[name] = values
    theirs = run_kernel(model, sequences, step, copies)
    for n, a in ours.items():
        np.testing.assert_allclose(a, theirs[n], rtol=3e-6, atol=1e-7, err_msg=n)


def run_kernel(model, sequences, step, copies):
    """What the kernel writes to its inputs, as an output cannot be a sequence that is updated in place."""
    import onnxruntime as ort

    model = type(model).FromString(model.SerializeToString())
    graph, kinds = model.graph, "wgmv"
    for name in INPUTS[2:]:
        position = [i.name for i in graph.input].index(name)
        del graph.input[position]
    tensors, first = {}, []
    for name, kind in zip(INPUTS[2:], kinds, strict=True):
        tensors |= {f"{kind}{i}": a for i, a in enumerate(copies[kind])}
        first.append(helper.make_node("SequenceConstruct", [f"{kind}0", f"{kind}1"], [name]))
    graph.input.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in tensors.items())
    nodes = [*first, *graph.node]
    last = nodes[-1]
    updated = {"w": "updated_params", "m": "updated_m", "v": "updated_v"}
    if last.op_type == "SGDOptimizerV2":
        updated = {"w": "updated_params"}
    last.output.extend(updated.values())
    for kind, name in updated.items():
        for i in range(2):
            at = f"{kind}{i}_at"
            nodes.append(helper.make_node("Constant", [], [at], value_int=i))
            nodes.append(helper.make_node("SequenceAt", [name, at], [f"{kind}{i}_new"]))
            graph.output.append(helper.make_tensor_value_info(f"{kind}{i}_new", TensorProto.FLOAT, None))
    copied = [type(n).FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend(copied)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"learning_rate": np.float32([0.1]), "step": np.int64([step + 1]), **tensors}
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, {i.name: feeds[i.name] for i in session.get_inputs()}), strict=True))


def test_settings_are_read():
    assert read_optimizer(onnx.load(STORED / "bert" / "optimizer_model.onnx")) == AdamW(
        None, alpha=np.float32(0.9).item(), beta=np.float32(0.999).item(), epsilon=np.float32(1e-6).item(),
        weight_decay=0.0, adam_mode=1, correct_bias=1)
    assert read_optimizer(make_model(*CASES["SGD clipped"])).max_norm == 0.5


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (make_model("LambOptimizer", {}, None),
         "has LambOptimizer; AdamWOptimizer, InplaceClipGradNorm, SGDOptimizerV2"),
        (make_model("AdamWOptimizer", {"adam_mode": 2}, None), "adam_mode 2; 0 and 1 are known"),
        (make_model("AdamWOptimizer", {"amsgrad": 1}, None), "the attribute 'amsgrad', which is not known"),
        (make_model("SGDOptimizerV2", {}, None, ["learning_rate", "gradients", "params"]),
         "reads learning_rate, gradients, params; learning_rate, params, gradients were expected"),
    ],
)
def test_what_is_not_known_is_named(model, message):
    with pytest.raises(ModelError, match=message):
        read_optimizer(model)


def test_one_optimizer_is_expected():
    model = make_model("SGDOptimizerV2", {}, 1.0)
    del model.graph.node[1:]
    with pytest.raises(ModelError, match="has 0 optimizers; one was expected"):
        read_optimizer(model)
    model.graph.node.extend([*model.graph.node])
    with pytest.raises(ModelError, match="the same operator twice"):
        read_optimizer(model)
