"""Decoders as onnxruntime-genai's model builder writes them are trained on token ids alone."""

import pickle

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from once import ON_BOTH
from onnx import helper, numpy_helper
from tiny_decoders import generate, make_decoder, past_of

from ortpartial import (
    Checkpoint,
    CosineSchedule,
    EarlyStopping,
    GradientMonitor,
    LearningRateAdamW,
    OrtGradientForwardBackwardOptimizer,
    PaddedBatches,
    ReduceOnPlateau,
    add_lora,
    build,
    find_learning_rate,
    load,
    op,
    pad_rows,
)
from ortpartial.exceptions import DataError, ModelError, SettingError
from ortpartial.graph import topological
from ortpartial.learning_loss import NextTokenLearningLoss, SoftmaxCrossEntropyLearningLoss
from ortpartial.model import find_computed_inputs, read

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
        ran = engine._source_for(engine._shapes[2]).spec.rewritten
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
    ran = engine._source_for(engine._shapes[2]).spec
    assert list(ran.model.inputs) == ["input_ids"]
    for spec, rows in ((ran, 2), (optimizer._spec.for_inputs(["input_ids"]), "batch_size")):
        nodes = topological([spec.rewritten.outputs["logits"]])  # Rules see that there is no past.
        assert [n.inputs[3].shape for n in nodes if n.op_type == "GroupQueryAttention"] == [(rows, 1, 0, 16)]
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
    (IDS + 20, "'input_ids' of .* has an index that is not in"),
])
def test_data_that_do_not_fit_are_refused(X, message):
    with pytest.raises(DataError, match=message):
        make_optimizer().fit(X, NEXT)


# -- adapters of a decoder with packed weights ---------------------------------------------------------------------


def make_trainer(model=None, **settings):
    """An optimizer of an adapter of an int4 decoder, by the loss of the next token."""
    settings = {"learning_rate": 0.05, "max_iter": 3, "batch_size": 2, "shuffle": False, "random_state": 0, **settings}
    model = add_lora(make_decoder(layers=2), rank=4, random_state=0) if model is None else model
    return OrtGradientForwardBackwardOptimizer(model, "adapter", learning_loss=NextTokenLearningLoss(), **settings)


def fit_adapter(X=IDS, y=IDS, **settings):
    return make_trainer(**settings).fit(X, y)


def read_packed(proto):
    """The weights of 4 bits, by name."""
    return {t.name: t.raw_data for t in proto.graph.initializer if t.name.endswith("_Q4")}


@pytest.mark.parametrize("checkpointing", ["auto", ["/model/layers.0/post_attention_layernorm/output_3"]])
def test_checkpointing_changes_no_weight(checkpointing):
    y = np.where(MASK, IDS, -100)
    X = {"input_ids": IDS, "attention_mask": MASK.astype(int)}
    whole, again = fit_adapter(X, y, engine="step"), fit_adapter(X, y, engine="step", checkpointing=checkpointing)
    assert_close(again.trained_coef_, whole.trained_coef_)
    assert whole.train_losses_[-1] < whole.train_losses_[0]
    counts = []
    for o in (whole, again):
        graphs = [read(graph) for graph in o.save_onnx_graph(bytes).values()]
        counts.append(max([n.op_type for n in graph.graph.node].count("GroupQueryAttention") for graph in graphs))
    assert counts[0] == 2 < counts[1]  # Attention is computed again.


def test_accumulation_is_one_batch_of_as_many_tokens():
    whole, parts = fit_adapter(batch_size=6), fit_adapter(accumulate=3)
    assert_close(parts.trained_coef_, whole.trained_coef_)
    np.testing.assert_allclose(parts.train_losses_, whole.train_losses_, rtol=1e-5)


def test_accumulation_takes_the_mean_of_means():
    y = np.where(MASK, IDS, -100)  # The three batches have 11, 9 and 7 tokens that count, 7 of them the first of a row.
    start = make_trainer().trained_coef_
    parts = fit_adapter(y=y, accumulate=3, max_iter=1)
    single = [fit_adapter(IDS[i : i + 2], y[i : i + 2], max_iter=1).trained_coef_ for i in (0, 2, 4)]
    mean = {n: start[n] + sum(w[n] - start[n] for w in single) / 3 for n in start}
    assert_close(parts.trained_coef_, mean)


@ON_BOTH
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_mixed_precision_leaves_packed_weights_as_they_are(precision):
    model = add_lora(make_decoder(layers=2), rank=4, random_state=0)
    try:
        low = fit_adapter(model=model, precision=precision)
    except ModelError as e:
        if precision != "bfloat16" or "no kernel" not in str(e):
            raise
        pytest.skip(str(e).partition(";")[0])
    whole = fit_adapter(model=model)
    np.testing.assert_allclose(low.train_losses_, whole.train_losses_, rtol=1e-3)
    assert low.train_losses_[-1] < low.train_losses_[0]
    assert read_packed(low.get_trained_onnx()) == read_packed(model)
    assert len(read_packed(model)) == 11


@pytest.mark.filterwarnings("ignore:The adapter's dropout of 0.3 drops nothing")
def test_dropout_of_an_adapter_follows_from_the_seed():
    model = add_lora(make_decoder(layers=2), rank=4, dropout=0.3, random_state=0)
    first, again, other, off = (fit_adapter(model=model, train_mode=on, random_state=seed)
                                for seed, on in [(0, True), (0, True), (1, True), (0, False)])
    for n, w in first.trained_coef_.items():
        np.testing.assert_array_equal(w, again.trained_coef_[n])
    assert len({o.train_losses_[-1] for o in (first, other, off)}) == 3
    assert_close(off.trained_coef_, fit_adapter().trained_coef_)
    assert_close(fit_adapter(model=model, train_mode=True, engine="step", checkpointing="auto").trained_coef_,
                 first.trained_coef_)


def test_a_loader_of_torch_pads_its_batches():
    rows = [row[:n] for row, n in zip(IDS, MASK.sum(1), strict=True)]
    loader = torch.utils.data.DataLoader(rows, batch_size=2, collate_fn=pad_rows)
    batches = [pad_rows(rows[i : i + 2]) for i in (0, 2, 4)]
    assert_close(fit_adapter(loader, None).trained_coef_, fit_adapter(batches, None).trained_coef_)


def test_callbacks_take_ids_alone():
    monitor = GradientMonitor()
    optimizer = make_trainer(callbacks=[monitor, EarlyStopping(), ReduceOnPlateau()], validation_every=1)
    optimizer.fit({"input_ids": IDS}, IDS, X_val=0.3)
    assert len(monitor.norms_) == len(optimizer.validation_losses_) == 3
    assert find_learning_rate(make_trainer(), {"input_ids": IDS}, IDS).rates.size


def test_an_adapter_learns_sentences_that_the_trained_file_goes_on_with(tmp_path):
    rng = np.random.default_rng(0)
    prompts = [[1, a, b] for a in range(3, 7) for b in range(7, 12)]
    sentences = [[*prompt, *rng.integers(3, 24, rng.integers(2, 7)).tolist(), 2] for prompt in prompts]
    labels = [[-100] * 3 + sentence[3:] for sentence in sentences]
    model = add_lora(make_decoder(layers=2), ["*proj*", "lm_head"], rank=8, random_state=0)

    def give():
        return PaddedBatches(sentences, labels, batch_size=10, multiple_of=4, random_state=0)

    def make(max_iter, **settings):
        rate = LearningRateAdamW(0.02, schedule=CosineSchedule(n=120))
        return make_trainer(model, learning_rate=rate, max_iter=max_iter, **settings)

    optimizer = make(60).fit(give())
    assert optimizer.train_losses_[-1] < 0.01
    trained = optimizer.get_trained_onnx()
    session = onnxruntime.InferenceSession(trained.SerializeToString(), providers=["CPUExecutionProvider"])
    assert [generate(session, model, s[:3], len(s) - 3) for s in sentences] == sentences
    assert read_packed(trained) == read_packed(model)
    assert (optimizer.losses(give()) < 0.1).all()
    assert optimizer.score(*pad_rows(sentences, labels)) == 1

    make(30, callbacks=[Checkpoint(tmp_path)]).fit(give())  # as if it had been cut off
    for again in (make(60).fit(give(), resume=tmp_path), pickle.loads(pickle.dumps(optimizer))):
        for n, w in optimizer.trained_coef_.items():
            np.testing.assert_array_equal(again.trained_coef_[n], w)


MERGED = """
    <ir_version: 9, opset_import: ["" : 20]>
    merged (int64[rows, tokens] input_ids, float[rows, 1, past, 4] past_key_0, bool[1] use_cache_branch)
        => (float[rows, tokens, 24] logits, float[rows, 1, all, 4] present_key_0) {
        x = Gather(table, input_ids)
        axis = Constant<value = int64[1] {1}>()
        new = Unsqueeze(x, axis)
        y, present_key_0 = If(use_cache_branch)<
            then_branch = cached () => (float[rows, tokens, 4] with_past, float[rows, 1, all, 4] longer) {
                mean = ReduceMean<keepdims = 0>(past_key_0)
                with_past = Add(x, mean)
                longer = Concat<axis = 2>(past_key_0, new)
            },
            else_branch = plain () => (float[rows, tokens, 4] alone, float[rows, 1, tokens, 4] first) {
                alone = Identity(x)
                first = Identity(new)
            }
        >
        logits = MatMul(y, head)
    }
"""


def test_a_merged_decoder_takes_the_branch_without_a_cache():
    model = onnx.parser.parse_model(MERGED)
    rng = np.random.default_rng(0)
    arrays = {"table": rng.normal(size=(24, 4)), "head": rng.normal(size=(4, 24))}
    model.graph.initializer.extend(numpy_helper.from_array(a.astype("f4"), n) for n, a in arrays.items())
    optimizer = make_optimizer(model).fit({"input_ids": IDS}, NEXT)
    assert optimizer.train_losses_[-1] < optimizer.train_losses_[0]
    expected = optimizer.trained_coef_["table"][IDS] @ optimizer.trained_coef_["head"]
    np.testing.assert_allclose(optimizer.predict(IDS), expected, rtol=1e-5, atol=1e-6)
