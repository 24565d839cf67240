"""Inputs of language models that data leave out are recognized, and computed as transformers computes them."""

import numpy as np
import pytest
from tiny_decoders import make_decoder, past_of

from ortpartial import build, constant, load, op, variable
from ortpartial.exceptions import DataError
from ortpartial.model.computed_inputs import find_computed_inputs
from ortpartial.runtime.session import Session

IDS = np.array([[3, 4, 5, 6], [7, 8, 9, 0]])
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])
LAYOUTS = {
    "past_key_values.0.key": (["rows", 2, "past", 16], ("rows", 2, 0, 16)),
    "past_key_values.0.decoder.value": (["rows", 2, "past", 16], ("rows", 2, 0, 16)),
    "past_key_0": (["rows", 2, None, 16], ("rows", 2, 0, 16)),
    "past_0": ([2, "rows", 4, "past", 8], (2, "rows", 4, 0, 8)),
    "past_key_values_key_cache_0": (["rows", 1, "past", 8], ("rows", 1, 0, 8)),
    "model.layers.0.v_cache": (["rows", "past", 1, 8], ("rows", 0, 1, 8)),
    "value_cache_1": (["rows", 1, "past", "size"], ("rows", 1, 0, 8)),
}


def make_model(inputs, tokens="input_ids", dtype="int64"):
    """A model with inputs of these names, dtypes and shapes, each of which is an output."""
    rank = 2 if dtype == "int64" else 3
    every = [variable(tokens, dtype, ["rows", "tokens", 4][:rank])]
    every += [variable(n, kind, shape) for n, kind, shape in inputs]
    return load(build(every, {f"y_{v.hint}": op.Identity(v) for v in every}))


@pytest.mark.parametrize("name", LAYOUTS)
def test_caches_are_recognized_by_name_rank_and_type(name):
    declared, shape = LAYOUTS[name]
    ids, past = variable("input_ids", "int64", ["rows", "tokens"]), variable(name, "float32", declared)
    new = constant(np.zeros((1, 1, 1, 8), np.float32))
    longer = op.Concat(past, new, axis=2) if "size" in declared else past * 2  # The size follows from the former.
    computed = find_computed_inputs(load(build([ids, past], {"y": op.Identity(ids), "present": longer})))
    assert dict(computed.shapes) == {name: shape}
    assert computed.caches == (name,)


def test_positions_of_text_in_three_dimensions():
    shapes = {"attention_mask": ["rows", "tokens"], "position_ids": [3, "rows", "tokens"]}
    model = make_model([(n, "int64", shape) for n, shape in shapes.items()])
    alone = find_computed_inputs(model).compute(model, ["input_ids", "attention_mask"])
    feeds = {"input_ids": IDS, "attention_mask": MASK}
    found = Session(build(alone.inputs, alone.outputs)).run(feeds)["y_position_ids"]
    np.testing.assert_array_equal(found, [np.maximum(MASK.cumsum(1) - 1, 0)] * 3)


def test_states_are_zero_and_go_with_the_cache():
    """Those of a convolution and of linear attention, of rows alone, beside a key-value cache."""
    kinds = {"past.0.conv": ["rows", 6, 3], "past.1.recurrent": ["rows", 2, 4, 4],
             "past_key_values.2.key": ["rows", 1, "past", 8]}
    model = make_model([(n, "float32", shape) for n, shape in kinds.items()])
    computed = find_computed_inputs(model)
    assert dict(computed.shapes) == {"past.0.conv": ("rows", 6, 3), "past.1.recurrent": ("rows", 2, 4, 4),
                                     "past_key_values.2.key": ("rows", 1, 0, 8)}
    assert computed.choose(["input_ids", "past.0.conv"]) == list(kinds)
    alone = computed.compute(model, ["input_ids"])
    found = Session(build(alone.inputs, alone.outputs)).run({"input_ids": IDS})
    np.testing.assert_array_equal(found["y_past.0.conv"], np.zeros((2, 6, 3)))
    np.testing.assert_array_equal(found["y_past.1.recurrent"], np.zeros((2, 2, 4, 4)))
    assert not find_computed_inputs(make_model([("past.0.conv", "float32", ["rows", "channels", 3])])).shapes


@pytest.mark.parametrize(("name", "kind", "shape"), [
    ("past_key_values.0.encoder.key", "float32", ["rows", 2, "past", 16]),  # An encoder has written it.
    ("past_key_cross_0", "float32", ["rows", 2, "past", 16]),
    ("past_key_values.0.key", "float32", ["rows", 2, 128, 16]),  # It has a fixed length.
    ("past_key_values.0.key", "float32", ["rows", 2, "past", "size"]),  # Nothing says how large it is.
    ("past_values", "float32", ["rows", "tokens"]),  # The values of a time series.
    ("attention_mask", "float32", ["rows", 1, "tokens", "tokens"]),
    ("attention_mask_2", "int64", ["rows", "tokens"]),
    ("token_type_ids", "int64", ["rows", "tokens"]),
])
def test_other_inputs_are_to_be_given(name, kind, shape):
    assert not find_computed_inputs(make_model([(name, kind, shape)])).shapes


def test_models_without_tokens_have_no_such_inputs():
    x = variable("x", "int64", ["rows", "tokens"])
    mask = variable("attention_mask", "int64", ["rows", "tokens"])
    assert not find_computed_inputs(load(build([x, mask], {"y": x * mask}))).shapes


@pytest.mark.parametrize("tokens", ["input_ids", "inputs_embeds"])
def test_masks_and_positions_are_those_of_transformers(tokens):
    dtype = "int64" if tokens == "input_ids" else "float32"
    model = make_model([("attention_mask", "int32", ["rows", "all"]), ("position_ids", "int64", ["rows", "tokens"]),
                        ("cache_position", "int64", ["tokens"]), ("use_cache_branch", "bool", [1]),
                        ("num_logits_to_keep", "int64", [])], tokens, dtype)
    X = np.zeros((2, 4, 4)[: 2 if dtype == "int64" else 3], dtype)
    computed = find_computed_inputs(model)

    def run(**given):
        feeds = {tokens: X, **given}
        outputs = computed.compute(model, feeds)
        assert list(outputs.inputs) == list(feeds)
        found = Session(build(outputs.inputs, outputs.outputs)).run(feeds)
        shapes = computed.measure({n: a.shape for n, a in feeds.items()})
        assert all(found[f"y_{n}"].shape == shapes[n] for n in shapes)
        return found

    found = run()
    assert found["y_attention_mask"].tolist() == [[1] * 4] * 2
    assert found["y_position_ids"].tolist() == [[0, 1, 2, 3]] * 2
    assert found["y_cache_position"].tolist() == [0, 1, 2, 3]
    assert not found["y_use_cache_branch"][0]
    assert found["y_num_logits_to_keep"] == 0
    assert found["y_attention_mask"].dtype == np.int32
    padded = np.array([[0, 0, 1, 1], [1, 1, 1, 0]], np.int32)  # at the left, and at the right
    assert run(attention_mask=padded)["y_position_ids"].tolist() == [[0, 0, 0, 1], [0, 1, 2, 2]]


def test_positions_go_on_behind_a_cache():
    model = make_model([("attention_mask", "int64", ["rows", "all"]), ("position_ids", "int64", ["rows", "tokens"]),
                        ("cache_position", "int64", ["tokens"]), ("past_0", "float32", [2, "rows", 1, "past", 8])])
    computed, feeds = find_computed_inputs(model), {"input_ids": IDS, "past_0": np.zeros((2, 2, 1, 3, 8), np.float32)}
    outputs = computed.compute(model, feeds)
    found = Session(build(outputs.inputs, outputs.outputs)).run(feeds)
    assert found["y_attention_mask"].shape == (2, 7)
    assert found["y_position_ids"].tolist() == [[3, 4, 5, 6]] * 2
    assert found["y_cache_position"].tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize("has_positions", [False, True])
def test_a_decoder_computes_what_it_computes_from_all_inputs(has_positions):
    proto = make_decoder(layers=2, has_positions=has_positions)
    model = load(proto)
    computed = find_computed_inputs(model)
    assert computed.caches == tuple(n for n in model.inputs if n.startswith("past"))
    every = {"input_ids": IDS, "attention_mask": MASK, **past_of(proto, 2)}
    if has_positions:
        every["position_ids"] = np.arange(4)[None].repeat(2, 0)
    expected = Session(proto).run(every)["logits"]
    assert (np.abs(expected) > 0.1).any()
    for given in (["input_ids", "attention_mask"], list(every)):
        shorter = computed.compute(model, given)
        logits = Session(build(shorter.inputs, {"logits": shorter.outputs["logits"]})).run({n: every[n] for n in given})
        np.testing.assert_allclose(logits["logits"][MASK == 1], expected[MASK == 1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("arrays", "message"), [
    ({"attention_mask": np.ones((2, 5), int)}, r"'attention_mask' has shape \(2, 5\), where \(2, 4\) was expected"),
    ({"attention_mask": MASK[:, ::-1]}, "Row 1 of 'attention_mask' has tokens behind padding"),
    ({"attention_mask": MASK * [[1], [0]]}, "Row 1 of 'attention_mask' has no token, or numbers other than 0 and 1"),
    ({"attention_mask": MASK * 2}, "Row 0 of 'attention_mask' has no token, or numbers other than 0 and 1"),
    ({"input_ids": IDS - IDS.max() - 1}, "'input_ids' has the token -[0-9]+, and ids begin at 0; what pads a row is"),
    ({"attention_mask": MASK, **past_of(make_decoder(), 2)}, None),
])
def test_masks_of_other_tokens_are_refused(arrays, message):
    computed = find_computed_inputs(load(make_decoder()))
    if message is None:
        computed.check({"input_ids": IDS, **arrays})
        return
    with pytest.raises(DataError, match=message):
        computed.check({"input_ids": IDS, **arrays})


def test_open_sizes_of_a_cache_follow_from_what_it_becomes():
    ids = variable("input_ids", "int64", ["rows", "tokens"])
    past = {n: variable(n, "float32", ["rows", 2, "past", "size"]) for n in ("past_key_0", "past_key_1")}
    present = op.Reshape(past["past_key_0"], [0, 2, -1, 16])
    model = load(build([ids, *past.values()], {"y": op.Identity(ids), "present_key_0": present,
                                               "present_key_1": past["past_key_1"] * 2}))
    assert dict(find_computed_inputs(model).shapes) == {"past_key_0": ("rows", 2, 0, 16)}


def test_inputs_of_unknown_rank_are_to_be_given():
    ids, past, x = (variable(n, kind, shape) for n, kind, shape in [
        ("input_ids", "int64", ["rows", "tokens"]), ("past_0", "float32", None), ("attention_mask", "int64", None)])
    assert not find_computed_inputs(load(build([ids, past, x], {"y": ids * 2, "p": past * 2, "m": x * 2}))).shapes
    x = variable("x", "float32", None)
    assert not find_computed_inputs(load(build([x], {"y": x * 2}))).shapes
