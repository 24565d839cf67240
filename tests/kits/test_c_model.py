"""The model of an export in C: its code, and why it may be missing."""

from models import linear

from ortpartial import OrtGradientForwardBackwardOptimizer, TrainingSession
from ortpartial.kits.c_export import _translate
from ortpartial.kits.c_model import translate_model


def test_weights_are_pointers_into_the_state():
    session = TrainingSession(OrtGradientForwardBackwardOptimizer(linear(3)).get_training_onnx("lowered", init="model"))
    training, _ = _translate(session, 4, "t")
    model = translate_model(session, training)
    files = model.write()
    assert sorted(files) == ["t.onnx", "t_model.c", "t_model.h", "t_predict.c", "t_predict.h"]
    assert (model.inputs, model.reason) == (["x"], "")
    assert b"int32_t t_predict(const t_state *state, t_predict_memory *memory, const float *x," in files["t_predict.h"]
    assert b"{x, state->coef, state->intercept}" in files["t_predict.c"]
    assert b"t_predict_train" not in files["t_predict.h"] + files["t_predict.c"]
    assert not any(f.name.startswith("x") for f in model.step.memory)  # no rows are gathered
    for name, offset in model.weights.items():
        assert f"{{offsetof(t_state, {name}), {session.state[name].nbytes}, {offset}}}".encode() in files["t_model.c"]
