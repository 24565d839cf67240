"""How many layers follow that of a weight: by the numbers in names, and by the graph where there are none."""

from dataclasses import replace

from models import parameter, stack_layers

from ortpartial.autodiff.depth import find_depths
from ortpartial.graph.build import build
from ortpartial.graph.ops import op, variable
from ortpartial.model.aliases import Alias
from ortpartial.model.load import load


def by_module(depths):
    """The depth of each module, whose parameters have all the same one."""
    modules = {}
    for name, depth in depths.items():
        modules.setdefault(name.rpartition(".")[0], set()).add(depth)
    assert all(len(each) == 1 for each in modules.values())
    return {module: depth for module, (depth,) in modules.items()}


def test_numbered_layers_between_embeddings_and_head():
    names = ["embeddings.word", "embeddings.norm", "encoder.layer.0.a", "encoder.layer.0.b", "encoder.layer.1.a",
             "encoder.layer.2.a", "pooler", "classifier"]
    depths = by_module(find_depths(load(stack_layers(*names)), ["y"]))
    assert depths == dict(zip(names, [4, 4, 3, 3, 2, 1, 0, 0], strict=True))


def test_the_last_module_of_a_sequence_is_the_head():
    assert by_module(find_depths(load(stack_layers("0", "2", "4")), ["y"])) == {"0": 2, "2": 1, "4": 0}
    assert by_module(find_depths(load(stack_layers("f.0.a", "f.0.b", "norm", "f.1.a", "c.0", "c.3")), ["y"])) == {
        "f.0.a": 3, "f.0.b": 3, "norm": 3, "f.1.a": 2, "c.0": 1, "c.3": 0}


def test_aliases_have_numbers_too():
    model = replace(load(stack_layers("a", "b", "c")), aliases={
        f"layer.{i}.{parameter}": Alias(f"{module}.{parameter}")
        for i, module in enumerate("ab") for parameter in ("weight", "bias")})
    assert by_module(find_depths(model, ["y"])) == {"a": 2, "b": 1, "c": 0}


def test_weights_that_are_transposed_in_front_of_all_the_rest():
    """An exporter writes what depends on weights alone where it likes: a layer is where the data meet it."""
    x, weights = variable("x", "float32", ["N", 4]), [parameter(f"layer.{i}.weight", 4, 4) for i in range(3)]
    transposed = [op.Transpose(w) for w in reversed(weights)]
    h = x
    for w in reversed(transposed):
        h = h @ w
    assert by_module(find_depths(load(build([x], {"y": h})), ["y"])) == {"layer.0": 2, "layer.1": 1, "layer.2": 0}


def test_without_numbers_products_are_counted():
    """Branches of equal length have the same depth, a tied weight that of its first use."""
    x = variable("x", "int64", ["N"])
    table = parameter("table", 5, 4)
    h = op.Gather(table, x)
    h = h @ parameter("q", 4, 4) + h @ parameter("k", 4, 4)
    h = h * parameter("scale", 4)
    h = h @ parameter("out", 4, 4)
    depths = find_depths(load(build([x], {"y": h @ op.Transpose(table)})), ["y"])
    assert depths == {"table": 3, "q": 2, "k": 2, "scale": 2, "out": 1}
