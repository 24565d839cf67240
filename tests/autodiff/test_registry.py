"""Registration of rules, and their lookup."""

import numpy as np
import pytest
import torch
from onnx import defs, helper, parser
from table import real

from ortpartial.autodiff import registry
from ortpartial.autodiff.grad import grad
from ortpartial.autodiff.registry import elementwise, has_rule, no_gradient, vjp
from ortpartial.exceptions import GraphError, NoGradientError
from ortpartial.graph.build import build
from ortpartial.graph.ops import Operators, constant, op, variable
from ortpartial.model import load
from ortpartial.testing import evaluate


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """What a test registers is forgotten after it; Unique has no rule."""
    monkeypatch.setattr(registry, "RULES", {key: rule for key, rule in registry.RULES.items() if key != ("", "Unique")})
    monkeypatch.setattr(registry, "CONSTANT", set(registry.CONSTANT))


def node_types(inputs, outputs):
    return [node.op_type for node in build(inputs, outputs).graph.node]


def compute(outputs, **feeds):
    """Outputs for arrays by the names of their variables, in the dtype of the arrays."""
    x = {name: variable(name, v.dtype, v.shape) for name, v in feeds.items()}
    return list(evaluate(build(x, {f"y{i}": v for i, v in enumerate(outputs(**x))}), feeds).values())


def test_a_rule_is_registered():
    assert not has_rule("Unique")

    @vjp("Unique")
    def _(x, *, y, dy):
        return dy * x

    assert has_rule("Unique")
    x = variable("x", "float32", [2])
    assert node_types([x], grad(op.Unique(x), [x])) != []


def test_elementwise_takes_partial_derivatives():
    elementwise("Unique", lambda x, y: 3 * x)
    (dx,) = compute(lambda x: grad(op.Unique(x), [x]), x=np.arange(2.0))
    assert dx.tolist() == [0, 3]


def test_no_gradient_is_a_word():
    no_gradient("Unique")
    assert has_rule("Unique")
    assert compute(lambda x: grad(op.Unique(x), [x]), x=np.arange(2.0))[0].tolist() == [0, 0]


def test_attributes_come_by_name_with_the_defaults_of_the_specification():
    seen = {}

    @vjp("LeakyRelu")
    def _(x, *, dy, alpha, node):
        seen.update(alpha=alpha, node=node.op_type)
        return dy

    x = variable("x", "float32", [3])
    grad(op.LeakyRelu(x), [x])
    assert seen == {"alpha": pytest.approx(0.01), "node": "LeakyRelu"}
    grad(op.LeakyRelu(x, alpha=0.5), [x])
    assert seen["alpha"] == 0.5


def test_a_misspelt_keyword_fails_at_registration():
    with pytest.raises(TypeError, match=r"The rule of Softmax asks for \['axes'\], which are no attributes of it"):
        vjp("Softmax")(lambda x, *, y, dy, axes: dy)


def test_too_many_inputs_fail_at_registration():
    with pytest.raises(TypeError, match="The rule of Exp takes 2 inputs, the operator 1"):
        vjp("Exp")(lambda x, z, *, dy: dy)


def test_an_unknown_operator_fails_at_registration():
    with pytest.raises(GraphError, match="no operator Nonsense"):
        vjp("Nonsense")(lambda x, *, dy: dy)


def test_a_rule_may_leave_out_its_last_inputs():
    vjp("Div")(lambda a, b, *, dy: dy)
    da, db = compute(lambda a, b: grad(op.Div(a, b), [a, b]), a=real(2), b=real(2))
    assert da.tolist() == [1, 1]
    assert db.tolist() == [0, 0]


def test_an_operator_of_ones_own():
    """As the error about a custom operator says: a schema, and a rule."""
    parameter = defs.OpSchema.FormalParameter
    schema = defs.OpSchema("Twice", "test.registry", 1, inputs=[parameter("X", "T")], outputs=[parameter("Y", "T")],
                           attributes=[defs.OpSchema.Attribute("factor", helper.make_attribute("factor", 2.0))],
                           type_constraints=[("T", ["tensor(float)"], "")])
    schema.set_type_and_shape_inference_function(lambda c: c.set_output_type(0, c.get_input_type(0)))
    defs.register_schema(schema)
    vjp("Twice", "test.registry")(lambda x, *, dy, factor: factor * dy)
    text = ('<ir_version: 10, opset_import: ["": 21, "test.registry": 1]> g (float[N, 2] x) => (float[N, 2] y) '
            "{ y = test.registry.Twice <factor = 3.0> (x) }")
    model = load(parser.parse_model(text))
    x, y = model.inputs["x"], model.outputs["y"]
    dy = variable("dy", "float32", ["N", 2])
    (dx,) = grad(y, [x], [dy])
    (values,) = evaluate(build([dy], [dx]), {"dy": np.ones((1, 2), np.float32)}).values()
    assert (y.shape, values.tolist()) == (("N", 2), [[3.0, 3.0]])


def test_attributes_of_later_opsets():
    """A rule that was written for an earlier opset refuses an attribute that it does not know, but for its default."""
    later, x = Operators(opset=28), variable("x", "float32", [1, 2, 4, 6])
    dy = np.random.default_rng(0).normal(size=(1, 8, 2, 3)).astype(np.float32)
    (dx,) = grad(later.SpaceToDepth(x, blocksize=2, mode="CRD"), [x], [constant(dy)])
    (found,) = evaluate(build([], {"dx": dx}), {}).values()
    np.testing.assert_array_equal(found, torch.nn.functional.pixel_shuffle(torch.from_numpy(dy), 2).numpy())

    @vjp("SpaceToDepth")
    def _(x, *, dy, blocksize):
        return op.DepthToSpace(dy, blocksize=blocksize)

    assert grad(later.SpaceToDepth(x, blocksize=2, mode="DCR"), [x])
    with pytest.raises(NoGradientError, match="has the attribute 'mode', which the rule"):
        grad(later.SpaceToDepth(x, blocksize=2, mode="CRD"), [x])
