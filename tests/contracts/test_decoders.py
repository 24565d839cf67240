"""Decoders as onnxruntime-genai's model builder writes them are trained on token ids alone."""

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from ortpartial import OrtGradientForwardBackwardOptimizer, build, load, op
from ortpartial.exceptions import DataError, SettingError
from ortpartial.graph import topological
from ortpartial.learning_loss import SoftmaxCrossEntropyLearningLoss
from ortpartial.model import find_computed_inputs, read
from tests.support.tiny_decoders import make_decoder, past_of

IDS = np.random.default_rng(0).integers(0, 24, (6, 8))
NEXT = np.roll(IDS, -1, axis=1)
MASK = np.arange(8) < np.array([8, 5, 8, 3, 8, 1])[:, None]


def make_optimizer(model=None, **settings):
    settings = {"learning_rate": "Adam", "max_iter": 3, "batch_size": 2, "random_state": 0, **settings}
    model = make_decoder() if model is None else model
    loss = SoftmaxCrossEntropyLearningLoss(axis=-1)
    return OrtGradientForwardBackwardOptimizer(model, learning_loss=loss, **settings)


def assert_close(first, second):
    assert first.keys() == second.keys()
    for n in first:
        np.testing.assert_allclose(first[n], second[n], rtol=1e-5, atol=1e-6, err_msg=n)


@pytest.mark.parametrize("engine", ["step", "epoch"])
@pytest.mark.parametrize("has_positions", [False, True])
def test_ids_alone_train_as_all_inputs_do(has_positions, engine):
    model = make_decoder(has_positions=has_positions)
    every = {"input_ids": IDS, "attention_mask": np.ones_like(IDS), **past_of(model, len(IDS))}
    if has_positions:
        every["position_ids"] = np.tile(np.arange(8), (6, 1))
    y = np.where(MASK, NEXT, -100)
    short, long = make_optimizer(model, engine=engine), make_optimizer(model, engine=engine)
    short.fit({"input_ids": IDS}, y)
    long.fit(every, y)
    assert short.train_losses_[-1] < short.train_losses_[0]
    assert_close(short.trained_coef_, long.trained_coef_)
    np.testing.assert_allclose(short.predict(IDS), long.predict(every), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(short.losses(IDS, y), long.losses(every, y), rtol=1e-5)
    assert short.score({"input_ids": IDS}, y) == long.score(every, y)
    assert [i.name for i in short.get_trained_onnx().graph.input] == list(load(model).inputs)


@pytest.mark.skipif(onnxruntime.__version__.startswith("1.19."), reason="onnxruntime 1.19.2 has no cache of a window.")
def test_a_cache_of_a_window_is_empty_as_any():
    """The builder writes one for sliding windows; a cache of less than the window is none to onnxruntime."""
    trained = []
    for more in ({}, {"sliding_window_cache": 1}):
        model = read(make_decoder())
        for node in (node for node in model.graph.node if node.op_type == "GroupQueryAttention"):
            settings = {a.name: helper.get_attribute_value(a) for a in node.attribute} | {"local_window_size": 3} | more
            del node.attribute[:]
            node.attribute.extend(helper.make_attribute(*pair) for pair in settings.items())
        optimizer = make_optimizer(model).fit({"input_ids": IDS}, NEXT)
        engine = optimizer._engine
        ran = engine._spec_for(engine._shapes[2]).rewritten
        attention = [n for n in topological(list(ran.outputs.values())) if n.op_type == "GroupQueryAttention"]
        assert all(past.array is not None for node in attention for past in node.inputs[3:5])
        trained.append((optimizer.trained_coef_, optimizer.predict({"input_ids": IDS})))
    assert_close(trained[0][0], trained[1][0])
    np.testing.assert_allclose(trained[0][1], trained[1][1], atol=1e-6)


def test_padding_changes_nothing_that_counts():
    whole, cut = make_optimizer(batch_size=1, shuffle=False), make_optimizer(shuffle=False)
    y = np.where(MASK, NEXT, -100)
    whole.fit({"input_ids": IDS, "attention_mask": MASK.astype(int)}, y)
    cut.fit([(IDS[i : i + 1, :n], NEXT[i : i + 1, :n]) for i, n in enumerate(MASK.sum(1))])
    assert_close(whole.trained_coef_, cut.trained_coef_)


def test_data_of_every_form():
    batches = [(IDS[:2], NEXT[:2]), ({"input_ids": IDS[2:4, :5]}, NEXT[2:4, :5]),
               {"input_ids": IDS[4:, :3], "attention_mask": MASK[4:, :3].astype(int), "labels": NEXT[4:, :3]},
               (IDS[:1, :6], NEXT[:1, :6], np.ones(1)), (IDS[:1, :7], NEXT[:1, :7])]
    optimizer = make_optimizer(validation_every=1).fit(batches, X_val=batches[:2])
    assert len(optimizer.validation_losses_) == 3
    optimizer.fit(IDS, NEXT, X_val=0.5)
    optimizer.fit(IDS, NEXT, X_val=IDS[:2], y_val=NEXT[:2])
    optimizer.partial_fit(IDS.tolist(), NEXT.tolist()).partial_fit({"input_ids": IDS, "labels": NEXT})
    np.testing.assert_array_equal(optimizer.predict(IDS.tolist()), optimizer.predict({"input_ids": IDS}))
    np.testing.assert_allclose(optimizer.losses(batches[:1]), optimizer.losses(IDS[:2], NEXT[:2]))


def test_a_step_computes_no_cache():
    optimizer = make_optimizer().fit(IDS, NEXT)
    assert list(optimizer._spec.losses) == ["logits"]
    engine = optimizer._engine
    ran = engine._spec_for(engine._shapes[2])
    assert list(ran.model.inputs) == ["input_ids"]
    outputs = read(optimizer.save_onnx_graph(bytes)["step"]).graph.output
    assert not [o.name for o in outputs if "present" in o.name]
    optimizer.predict(IDS)
    for session in optimizer._predictor.sessions.values():
        assert {*session.inputs} - {*optimizer.trained_coef_} == {"input_ids"}


def test_the_logits_are_trained_among_several_outputs():
    model = load(make_decoder())
    hidden = model.outputs["logits"].node.inputs[0]
    outputs = {"hidden_states": hidden, **model.outputs}
    assert list(make_optimizer(build(model.inputs, outputs))._spec.losses) == ["logits"]
    with pytest.raises(SettingError, match="say which to train"):
        make_optimizer(build(model.inputs, {"hidden_states": hidden, "logits": op.Identity(model.outputs["logits"])}))


def test_models_without_a_cache_take_ids_alone_as_well():
    model = load(make_decoder())
    bare = find_computed_inputs(model).compute(model, ["input_ids", "attention_mask"])
    optimizer = make_optimizer(build(bare.inputs, {"logits": bare.outputs["logits"]}))
    expected = make_optimizer().fit(IDS, NEXT).trained_coef_
    assert_close(optimizer.fit({"input_ids": IDS}, NEXT).trained_coef_, expected)
    assert_close(optimizer.fit(IDS, NEXT).trained_coef_, expected)
    both = [(IDS[:2], np.ones((2, 8), int), NEXT[:2])]  # Arrays in their order are all inputs, as in other models.
    assert_close(optimizer.fit(both).trained_coef_, make_optimizer().fit([(IDS[:2], NEXT[:2])]).trained_coef_)


@pytest.mark.parametrize(("X", "message"), [
    ({"input_ids": IDS, "attention_mask": np.ones((6, 9), int)}, r"'attention_mask' has shape \(6, 9\)"),
    ({"input_ids": IDS, "attention_mask": MASK[:, ::-1].astype(int)}, "Row 1 of 'attention_mask' has tokens behind"),
    ({"input_ids": IDS, "past_key_values.0.key": np.zeros((6, 1, 0, 16), np.float32)},
     "Missing input: 'past_key_values.0.value'"),
    ({"attention_mask": MASK.astype(int)}, "Missing input: 'input_ids'"),
    (IDS + 20, "'input_ids' has indices from"),
])
def test_data_that_do_not_fit_are_refused(X, message):
    with pytest.raises(DataError, match=message):
        make_optimizer().fit(X, NEXT)
