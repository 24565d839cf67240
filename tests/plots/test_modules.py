"""The modules of nodes, and of the nodes that say nothing."""

from models import mlp, stack_layers

from ortpartial import add_lora, build, load, op
from ortpartial.plots.modules import is_inserted, list_nodes


def modules(model):
    model = load(model)
    return [(n.node.op_type, ".".join(n.path)) for n in list_nodes(model, model.initializers)]


def test_weights_name_modules():
    """Between two nodes that are named, a node belongs to what these have in common."""
    model = load(stack_layers("layers.0.a", "layers.0.b", "head"))
    x, h = model.inputs["x"], model.outputs["y"]
    assert modules(build([x], {"y": op.Relu(h)})) == [
        ("MatMul", "layers.0.a"), ("Add", "layers.0.a"), ("MatMul", "layers.0.b"), ("Add", "layers.0.b"),
        ("MatMul", "head"), ("Add", "head"), ("Relu", "")]
    assert {path for _, path in modules(mlp())} == {""}


def test_recorded_modules():
    """They come before the names of weights; what torch's exporter writes where there is none is no module."""
    model = stack_layers("a", "b")
    for node, name in zip(model.graph.node, ["/net/first/MatMul", "/net/first/Add", "n2", "n3"], strict=True):
        node.name = name
    model.graph.node[2].metadata_props.add(
        key="pkg.torch.onnx.name_scopes", value="['_empty_nn_module_stack_from_metadata_hook', 'x']")
    assert [path for _, path in modules(model)] == ["net.first", "net.first", "b", "b"]


def test_nodes_of_an_adapter():
    model = load(add_lora(stack_layers("a", "b"), "a", rank=2, random_state=0))
    nodes = list_nodes(model, model.initializers)
    assert [".".join(n.path) for n in nodes if is_inserted(n.node)] == ["a"] * 4
    assert len(nodes) == 8
