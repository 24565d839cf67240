"""Trainings exported in C: the files compile, train as in Python, and the state comes back."""

import json
import shutil
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from models import linear, mlp, net
from once import ON_TRAINING

from ortpartial import OrtGradientForwardBackwardOptimizer, TrainingSession, build, nn, op, variable
from ortpartial.exceptions import DataError, ModelError, SettingError, UntranslatableError
from ortpartial.kits import export_c, read_c_state
from ortpartial.kits.c_texts import write_state
from ortpartial.learning import (
    CosineSchedule,
    ElasticLearningPenalty,
    LearningRateAdam,
    LearningRateSGD,
    LearningRateSGDNesterov,
)
from ortpartial.native import Field, NativeStep, lay_out
from ortpartial.runtime import Session

pytestmark = ON_TRAINING
COMPILERS = pytest.mark.skipif(shutil.which("cc") is None or shutil.which("make") is None or sys.platform == "win32",
                               reason="needs cc and make")
STRICT = "-O1 -Werror"
FILES = ["Makefile", "README.md", "main.c", "training.c", "training.h", "training.json", "training.onnx",
         "training_check.h", "training_model.c", "training_model.h", "training_predict.c", "training_predict.h",
         "training_state.c", "training_state.h"]

TRAININGS = {
    "linear": lambda: make(linear(5), rate=LearningRateSGD(0.1, schedule="invscaling")),
    "log_loss": lambda: make(linear(5), learning_loss="log_loss", rate=LearningRateSGDNesterov(0.1),
                             learning_penalty=ElasticLearningPenalty(l1=0.01, l2=0.1)),
    "classes": lambda: make(mlp(4, 3), learning_loss="softmax_cross_entropy",
                            rate=LearningRateAdam(0.01, schedule=CosineSchedule(n=20))),
    "dropout": lambda: make(net(0.3), rate=LearningRateAdam(0.01), train_mode=True),
    "float64": lambda: make(mlp(4, 2, dtype="float64"), rate=LearningRateAdam(0.01)),
}


def make(model, rate=0.1, **settings):
    return OrtGradientForwardBackwardOptimizer(model, learning_rate=rate, batch_size=6, random_state=0, **settings)


def rows(session, batch, steps=4, seed=3):
    """Batches of rows for a session."""
    rng = np.random.default_rng(seed)
    shapes = {n: (batch, *shape[1:]) for n, shape in session.shapes.items()}
    for _ in range(steps):
        yield {n: rng.integers(0, session.ranges[n].high, shape, endpoint=True) if n in session.ranges
               else rng.integers(0, 2, shape) if session._types[n].dtype.kind == "i"
               else rng.normal(size=shape).astype(session._types[n].dtype) for n, shape in shapes.items()}


def run(folder, *command, **settings):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False, **settings)


@pytest.mark.sampled(2)
@COMPILERS
@pytest.mark.parametrize("training", TRAININGS)
def test_program_trains_as_in_python(training, tmp_path):
    optimizer = TRAININGS[training]()
    session = TrainingSession(optimizer.get_training_onnx("lowered", init="model"))
    batches = list(rows(session, 6))
    data = {n: np.concatenate([b[n] for b in batches]) for n in batches[0]}
    assert sorted(export_c(optimizer, tmp_path / "c", data=data)) == FILES
    make_check = run(tmp_path / "c", "make", "check", f"CFLAGS={STRICT}")
    assert make_check.returncode == 0, make_check
    assert "step 4: loss" in make_check.stdout
    assert run(tmp_path / "c", "./training_check", "state.bin").returncode == 0
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in make_check.stdout.splitlines() if "loss" in line]
    np.testing.assert_allclose(losses, [session.step(b)["loss"] for b in batches], rtol=1e-6)
    after = read_c_state(tmp_path / "c", (tmp_path / "c" / "state.bin").read_bytes())
    assert list(after) == list(session.state)
    for n, expected in session.state.items():
        assert (after[n].dtype, after[n].shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(after[n], expected, rtol=1e-5, atol=1e-6, err_msg=n)
    assert make_check.stdout.count("prediction") == 1
    assert "NOT THE SAME" not in make_check.stdout


@COMPILERS
def test_model_that_c_saves_predicts_as_python_s(tmp_path):
    session = TrainingSession(TRAININGS["classes"]().get_training_onnx("lowered", init="model"))
    batches = list(rows(session, 6))
    export_c(TRAININGS["classes"](), tmp_path, data={n: np.concatenate([b[n] for b in batches]) for n in batches[0]})
    (tmp_path / "save.c").write_text("""
#include <stdio.h>
#include "training_model.h"
static training_state state;
int main(int count, char **paths) {
    FILE *file = fopen(paths[1], "rb");
    const int is_read = file != NULL && fread(&state, sizeof state, 1, file) == 1;
    return !is_read || count < 4 || training_save_model(&state, paths[2], paths[3]);
}
""")
    assert run(tmp_path, "make", "check").returncode == 0
    assert run(tmp_path, "./training_check", "state.bin").returncode == 0
    compiled = run(tmp_path, "cc", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "save.c",
                   "training_model.c", "-o", "save")
    assert compiled.returncode == 0, compiled.stderr
    assert run(tmp_path, "./save", "state.bin", "training.onnx", "trained.onnx").returncode == 0
    assert run(tmp_path, "./save", "state.bin", "no.onnx", "none.onnx").returncode == 1
    for batch in batches:
        session.step(batch)
    feeds = {"x": batches[0]["x"]}
    saved = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(None, feeds)[0]
    np.testing.assert_allclose(saved, Session(session.inference_model()).run(feeds)["y"], rtol=1e-4, atol=1e-6)
    first = onnxruntime.InferenceSession(tmp_path / "training.onnx").run(None, feeds)[0]
    assert np.abs(first - saved).max() > 1e-2


@COMPILERS
def test_model_that_cannot_be_written_is_saved_all_the_same(tmp_path):
    """It reads what the training does not."""
    x, z, w = variable("x", "float32", ["N", 4]), variable("z", "float32", ["N", 1]), linear_weight()
    optimizer = make(build([x, z], {"y": x @ w, "both": x @ w + z}), learning_loss={"y": "square_error"})
    files = export_c(optimizer, tmp_path)
    assert "training_predict.c" not in files
    assert "There is no `training_predict`: The model reads" in (tmp_path / "README.md").read_text()
    assert run(tmp_path, "make", "check", f"CFLAGS={STRICT}").returncode == 0


@pytest.mark.sampled(2)
@COMPILERS
@pytest.mark.parametrize("training", ["classes", "dropout"])
@pytest.mark.parametrize("flags", ["-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all", "-O2 -DOP_LANES=1"])
def test_program_has_no_undefined_behavior_and_needs_no_vectors(flags, training, tmp_path):
    export_c(TRAININGS[training](), tmp_path)
    result = run(tmp_path, "make", "check", f"CFLAGS={flags} -Werror")
    assert result.returncode == 0, result


@COMPILERS
def test_training_goes_on_in_python(tmp_path):
    optimizer = TRAININGS["classes"]()
    export_c(optimizer, tmp_path, name="digits")
    assert run(tmp_path, "make").returncode == 0
    run(tmp_path, "./digits_check", "state.bin")
    session = TrainingSession(optimizer.get_training_onnx())
    session.set_state(read_c_state(tmp_path, (tmp_path / "state.bin").read_bytes(), "digits"))
    continued = OrtGradientForwardBackwardOptimizer.from_training_info(session.training_model())
    assert session.state["iteration"] == 5
    for n, weight in continued.trained_coef_.items():
        assert np.abs(weight - optimizer.trained_coef_[n]).max() > 1e-3


@COMPILERS
def test_module_is_written_by_its_graph(tmp_path):
    module = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1)).set_optimizer("adam")
    module.compile(nn.placeholder(["N", 3]), random_state=0)
    x = np.ones((4, 3), np.float32)
    module.train_one_batch(x, x[:, :1])
    export_c(module.graph, tmp_path, batch_size=4)
    assert run(tmp_path, "make", "check").returncode == 0
    run(tmp_path, "./training_check", "state.bin")
    assert read_c_state(tmp_path, (tmp_path / "state.bin").read_bytes())["iteration"] == 6


@COMPILERS
def test_program_notices_other_losses(tmp_path):
    export_c(TRAININGS["linear"](), tmp_path)
    header = (tmp_path / "training_state.c").read_text()
    (tmp_path / "training_state.c").write_text(header.replace(".intercept = {", ".intercept = {1 + "))
    result = run(tmp_path, "make", "check")
    assert result.returncode
    assert [line[:4] for line in result.stdout.splitlines() if "NOT THE SAME" in line] == ["step"] * 5 + ["pred"]


@COMPILERS
def test_page_says_the_sizes(tmp_path):
    export_c(TRAININGS["classes"](), tmp_path)
    page = (tmp_path / "README.md").read_text()
    sizes = run(tmp_path, "make", "check").stdout.splitlines()[-1]
    for size in (word for word in sizes.split() if word.isdigit()):
        assert f"{int(size):,} bytes" in page
    assert "$" not in page.replace("$batch", "")


@COMPILERS
def test_step_as_cpp_and_for_many_steps(tmp_path):
    """The header is one of C++, too, and `training_train` does what `training_step` does."""
    if shutil.which("c++") is None:
        pytest.skip("needs c++")
    export_c(TRAININGS["linear"](), tmp_path)
    (tmp_path / "many.cpp").write_text("""
#include <cstring>
#include "training_check.h"
#include "training_state.h"
static training_state one, many;
static training_memory memory;
int main() {
    training_given given{}, given_many{};
    int64_t order[6 * TRAINING_CHECK_STEPS];
    float losses[TRAINING_CHECK_STEPS];
    one = many = training_initial;
    for (int i = 0; i < 6 * TRAINING_CHECK_STEPS; ++i) order[i] = i;
    training_rows all = {training_check_x, training_check_y_target};
    if (training_train(&many, &memory, &all, &given_many, order, TRAINING_CHECK_STEPS, losses)) return 1;
    for (int i = 0; i < TRAINING_CHECK_STEPS; ++i) {
        training_rows batch = {training_check_x + i * 6 * 5, training_check_y_target + i * 6};
        float loss;
        if (training_step(&one, &memory, &batch, &given, &loss) || loss != losses[i]) return 1;
    }
    return std::memcmp(&one, &many, sizeof one) != 0 || given.iteration != given_many.iteration;
}
""")
    assert run(tmp_path, "cc", "-std=c99", "-c", "training.c", "training_state.c").returncode == 0
    compiled = run(tmp_path, "c++", "-Wall", "-Wextra", "-Werror", "many.cpp", "training.o", "training_state.o", "-o",
                   "many", "-lm")
    assert compiled.returncode == 0, compiled
    assert run(tmp_path, "./many").returncode == 0


@COMPILERS
@pytest.mark.parametrize("flags", ["-O1", "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all"])
def test_a_label_out_of_range_is_refused_with_its_code(flags, tmp_path):
    """The state is as before the batch, and the steps before it count."""
    export_c(TRAININGS["classes"](), tmp_path)
    (tmp_path / "wrong.c").write_text("""
#include <stdio.h>
#include <string.h>
#include "training_check.h"
#include "training_state.h"
static training_state state, before;
static training_memory memory;
int main(void) {
    training_given given = {0};
    int64_t labels[12], order[12];
    float losses[2] = {0}, loss = -1;
    training_rows batch = {training_check_x, labels};
    for (int i = 0; i < 12; ++i) labels[i] = i % 3, order[i] = i;
    state = training_initial;
    labels[7] = 5;
    int32_t code = training_train(&state, &memory, &batch, &given, order, 2, losses);
    printf("%d %d %s %d\\n", code, (int)given.iteration, training_refusal(code), (int)memory.refused[0]);
    before = state;
    labels[1] = -7;
    code = training_step(&state, &memory, &batch, &given, &loss);
    printf("%d %d %d\\n", code, (int)memory.refused[0], memcmp(&state, &before, sizeof state) || loss != -1);
    labels[1] = 2;
    printf("%d %s\\n", training_step(&state, &memory, &batch, &given, &loss), training_refusal(0));
    printf("%d %s\\n", memcmp(&state, &before, sizeof state) != 0, training_refusal(99));
    return 0;
}
""")
    assert run(tmp_path, "cc", *flags.split(), "-std=c99", "-Wall", "-Wextra", "-Werror", "wrong.c", "training.c",
               "training_state.c", "-o", "wrong", "-lm").returncode == 0
    assert run(tmp_path, "./wrong").stdout.splitlines() == [
        "1 1 Input 'y_target' of training_info[0] has a label that is not in 0 to 2 or -100. 5", "1 -7 0",
        "0 Nothing was refused.", "1 This code is none of a refusal."]
    assert "an index or a label that is out of range" in (tmp_path / "README.md").read_text()


def test_state_is_exact(tmp_path):
    numbers = np.array([0.1, -0.0, 1e-45, 3.4028235e38, np.inf, -np.inf, np.nan, 1.0, -1.5], np.float32)
    counts = np.array([-(2**63), 2**63 - 1, 0], np.int64)
    flags = np.array([True, False])
    state = {"numbers": numbers, "counts": counts, "flags": flags}
    fields = tuple(Field(n, n, a.dtype, a.shape) for n, a in state.items())
    step = NativeStep("t", "", "", fields, (), (), 1, np.dtype("float32"), ())
    (tmp_path / "t.h").write_text("#include <stdint.h>\ntypedef struct { float numbers[9]; int64_t counts[3]; "
                                  "uint8_t flags[2]; } t_state;\n")
    for name, text in write_state(step, state).items():
        (tmp_path / name).write_text(text)
    assert "0x1.99999ap-4f" in text
    if shutil.which("cc") is None:
        pytest.skip("needs cc")
    (tmp_path / "main.c").write_text('#include <stdio.h>\n#include "t_state.h"\nint main(void) { return '
                                     "fwrite(&t_initial, sizeof t_initial, 1, stdout) != 1; }\n")
    assert run(tmp_path, "cc", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "main.c", "t_state.c", "-o",
               "main").returncode == 0
    data = subprocess.run([tmp_path / "main"], capture_output=True, check=True).stdout
    (values,) = np.frombuffer(data, lay_out(fields))
    np.testing.assert_array_equal(values["numbers"].view(np.int32) | np.isnan(numbers) * 2**22,
                                  numbers.view(np.int32) | np.isnan(numbers) * 2**22)
    np.testing.assert_array_equal(values["counts"], counts)
    np.testing.assert_array_equal(values["flags"], flags)


def test_model_with_training_information_of_its_own_size(tmp_path):
    optimizer = make(linear(3, rows=4))
    path = tmp_path / "training.onnx"
    onnx.save(optimizer.get_training_onnx("lowered"), path)
    export_c(path, tmp_path / "c")
    assert json.loads((tmp_path / "c" / "training.json").read_text())["batch_size"] == 4
    with pytest.raises(SettingError, match="batch_size is 5, and the model takes batches of 4 rows alone"):
        export_c(path, tmp_path / "c", 5)


def test_export_goes_on_from_where_the_training_is(tmp_path, rng):
    optimizer = make(linear(3), max_iter=2)
    optimizer.fit(rng.normal(size=(12, 3)).astype(np.float32), rng.normal(size=(12, 1)).astype(np.float32))
    export_c(optimizer, tmp_path, data={"x": np.ones((12, 3)), "y_target": np.ones((12, 1))})
    state = (tmp_path / "training_state.c").read_text()
    assert "iteration = {4}" in state
    assert float(optimizer.trained_coef_["intercept"][0]).hex().split("p")[0].rstrip("0") in state


def test_former_files_remain_where_the_export_fails(tmp_path):
    export_c(make(linear(3)), tmp_path)
    former = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(DataError, match="The data lack the input 'y_target'"):
        export_c(make(linear(4)), tmp_path, data={"x": np.ones((60, 4))})
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == former


@pytest.mark.parametrize("name", ["", "9lives", "a-b", "../up", "main", "Main", "double", "größe"])
def test_name_that_c_does_not_take(name, tmp_path):
    with pytest.raises(SettingError, match="expected a name for files and functions in C"):
        export_c(make(linear(3)), tmp_path, name=name)
    with pytest.raises(SettingError, match=r"^name is a string, not 3\.$"):
        export_c(make(linear(3)), tmp_path, name=3)


def test_operator_that_cannot_be_written_is_named(tmp_path):
    x = variable("x", "float32", ["N", 4])
    model = build([x], {"y": op.Sum(x @ linear_weight(), op.CastLike(op.Det(op.Unsqueeze(x, [1]).reshape(
        -1, 2, 2)).reshape(-1, 1), x))})
    with pytest.raises(UntranslatableError, match="Det"):
        export_c(make(model), tmp_path / "c")
    assert not (tmp_path / "c").exists()


def linear_weight():
    from ortpartial import constant

    return constant(np.ones((4, 1), np.float32), hint="w")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"x": np.ones((11, 3)), "y_target": np.ones((11, 1))}, "The data have 11 rows, fewer than two batches of 6"),
        ({"x": np.full((12, 3), np.nan), "y_target": np.ones((12, 1))}, "is not finite; give data of yours"),
        ({"x": np.ones((12, 4)), "y_target": np.ones((12, 1))}, "shape"),
    ],
)
def test_data_that_do_not_fit(data, message, tmp_path):
    with pytest.raises(DataError, match=message):
        export_c(make(linear(3)), tmp_path / "c", data=data)


def test_size_that_is_not_known(tmp_path):
    x = variable("x", "float32", ["N", "tokens", 4])
    with pytest.raises(SettingError, match="'tokens' of the input 'x' is not; export the model with a number"):
        export_c(make(build([x], {"y": x @ linear_weight()})), tmp_path)


def test_model_without_a_training(tmp_path):
    with pytest.raises(ModelError, match="one training step, and the model has 0 entries"):
        export_c(linear(3), tmp_path)
    with pytest.raises(SettingError, match="weighted is True, and the model says itself"):
        export_c(make(linear(3)).get_training_onnx("lowered"), tmp_path, weighted=True)


def test_state_of_another_size_is_refused(tmp_path):
    export_c(make(linear(3)), tmp_path)
    with pytest.raises(ModelError, match=r"training_state has 24 bytes, not 23; write the whole struct"):
        read_c_state(tmp_path, bytes(23))
    (tmp_path / "training.json").write_text("{}")
    with pytest.raises(ModelError, match=r"training\.json does not describe a training in C; export it again"):
        read_c_state(tmp_path, bytes(24))
    with pytest.raises(OSError, match="other"):
        read_c_state(tmp_path, bytes(24), "other")


@pytest.mark.parametrize("settings", [{"precision": "float16"}, {"checkpointing": "auto"}])
def test_settings_that_are_not_written_in_c(settings, tmp_path):
    (name, value), = settings.items()
    with pytest.raises(SettingError, match=f"{name}='{value}' is not written in C; set it to None first"):
        export_c(make(linear(3), **settings), tmp_path)
