"""Several processes take the steps that one takes, and the death of one ends the others."""

import re
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from models import assert_close, data, mlp, two_in_two_out
from once import ON_NEWEST, ON_TRAINING
from paths import ROOT, environment

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial import OrtGradientOptimizer, add_loss_output
from ortpartial.estimator import Checkpoint
from ortpartial.exceptions import OrtPartialError, SettingError
from ortpartial.execution import DataParallel
from ortpartial.learning.losses import SoftmaxCrossEntropyLearningLoss
from ortpartial.learning.optimizers import LearningRateAdafactor, LearningRateAdam
from ortpartial.learning.penalties import ElasticLearningPenalty
from ortpartial.learning.schedules import ReduceOnPlateauSchedule

SCRIPT = """
import datetime, os, pickle, signal, sys
import torch.distributed as dist
from ortpartial.exceptions import DataError
from test_data_parallel_engine import COMPRESSED, DIFFERENT, training

rank, size, port, folder, *cases = sys.argv[1:]
rank, size = int(rank), int(size)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size,
                        timeout=datetime.timedelta(seconds=60))
found = {}
for case in cases:
    made, arguments = training(case, distributed=COMPRESSED.get(case, True), rank=rank)
    if case == "death" and rank == 1:
        made.partial_fit(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
    if case in DIFFERENT:
        try:
            made.fit(*arguments)
        except DataError as e:
            found[case] = str(e)
        assert found[case] and made.n_iter_ == 0
        continue
    made.fit(*arguments)
    states = {str(i): a for i, a in enumerate(made.get_state("optimizer"))}
    found[case] = made.trained_coef_, states, made.train_losses_, made.validation_losses_
with open(f"{folder}/{rank}", "wb") as f:
    pickle.dump(found, f)
dist.destroy_process_group()
"""
#: What processes do together and one alone must do as well.
SAME = ["weighted", "unweighted", "two outputs", "float64", "few", "labels", "labels of two outputs", "clipped",
        "unfreezing", "plateau", "scaled by a callback", "resumed", "loss of the graph"]


#: What all say where the last process has something else.
DIFFERENT = {
    "other rows": r"'x' is float32 of shape \(53, 4\) and checksum \w+ in process 0 and float32 of shape \(52, 4\) .* "
                  r"in process \d; give every process the same model, settings and rows, all of them\.$",
    "other numbers": r"'y_target' is float32 of shape \(53, 1\) and checksum (\w+) in process 0 and float32 of shape "
                     r"\(53, 1\) and checksum (?!\1)\w+ in process \d",
    "other model": "the graph of the model is one of checksum",
    "other loss": "learning_loss is .*Square.* in process 0 and .*Huber.* in process",
    "other optimizer": r"learning_rate is .*eta0=0\.001,.* and .*eta0=0\.002,",
    "other validation": r"'y_val' is float32 of shape \(20, 1\) and checksum (\w+) in process 0 and float32 of shape "
                        r"\(20, 1\) and checksum (?!\1)\w+ in process \d",
    "no validation": r"X_val is given in process 0 and missing in process \d",
    "other batches": r"batch_size is 9 in process 0 and 8 in process \d; give every"}
COMPRESSED = {"float16": DataParallel("float16"), "top k": DataParallel(top_k=0.1),
              "both": DataParallel("float16", top_k=0.1), "all of them": DataParallel(top_k=1.0),
              "half of two outputs": DataParallel("float16"), "half of few": DataParallel("float16", top_k=0.3)}


class Halve:
    """Halves the weights within an epoch, in the first process, whose weights all have."""

    batches_between_calls = 2

    def __init__(self, rank):
        self.rank = rank

    def setup(self, estimator, context):
        assert self.rank == 0

    def on_fit_task_begin(self, estimator, context):
        pass

    def on_fit_task_end(self, estimator, context):
        assert self.rank == 0
        if context.task_name == "batches":
            estimator.set_state([a / 2 for a in estimator.get_state()])

    teardown = setup


class Cut(Halve):
    """Ends a training within its second epoch, in the first process."""

    def __init__(self):
        super().__init__(rank=0)

    def on_fit_task_end(self, estimator, context):
        if context.task_name == "batches" and estimator.n_iter_ == 1:
            raise ArithmeticError("cut")


def differ(case, settings, X, y, w):
    """An optimizer that trains something else than the first process, and what its fit is given."""
    if case in ("other rows", "other numbers"):
        return Optimizer(mlp(), **settings), (X[:52], y[:52], w[:52]) if case == "other rows" else (X, y + 1, w)
    if case == "no validation":
        return Optimizer(mlp(), **settings), (X, y, w)
    if case == "other validation":
        return Optimizer(mlp(), **settings), (X, y, w, X[:20], y[:20] + 1)
    other = {"other loss": {"learning_loss": "huber"}, "other batches": {"batch_size": 8},
             "other optimizer": {"learning_rate": LearningRateAdam(0.002)}}.get(case, {})
    return Optimizer(mlp(hidden=9 if case == "other model" else 8), **{**settings, **other}), (X, y, w)


def training(case, distributed=False, rank=0):
    """An optimizer of a case, and what its fit is given."""
    case = {"half of two outputs": "labels of two outputs", "half of few": "few"}.get(case, case)
    dtype = "float64" if case == "float64" else "float32"
    X, y, w = data(53, dtype=dtype)
    settings = {"max_iter": 4, "batch_size": 9, "random_state": 0, "learning_rate": "Adam", "distributed": distributed,
                "learning_penalty": ElasticLearningPenalty(l1=0.01, l2=0.1)}
    if case == "two outputs":
        losses = {"price": "square_error", "kind": "softmax_cross_entropy"}
        inputs, labels = {"a": X[:, :3], "b": X[:, 1:]}, (y[:, 0] > 0).astype(int)
        return Optimizer(two_in_two_out(), learning_loss=losses, **settings), (inputs, {"price": y, "kind": labels}, w)
    if case.startswith("labels"):  # Some do not count, and in the rows of one process of a batch none does.
        kinds = np.random.default_rng(0).integers(0, 2, 53)
        kinds[np.arange(53) % 8 > 0] = -100  # A batch may have labels of the class without weight alone.
        loss = SoftmaxCrossEntropyLearningLoss(class_weight=[0, 2], label_smoothing=0.1)
        if case == "labels":
            return Optimizer(mlp(outputs=2), learning_loss=loss, **settings), (X, kinds, w)
        losses, inputs = {"price": "square_error", "kind": loss}, {"a": X[:, :3], "b": X[:, 1:]}
        weights = {"price": w, "kind": None}
        return Optimizer(two_in_two_out(), learning_loss=losses, **settings), (
            inputs, {"price": y, "kind": kinds}, weights)
    if case == "unseeded":  # Every process draws its own first weights and orders, and takes those of the first.
        return Optimizer(mlp(), **{**settings, "random_state": rank or None, "init": "random"}), (X, y, w)
    if case == "callbacks":
        said = []

        def stop(o):
            assert rank == 0
            said.append(o.n_iter_)
            o.set_params(learning_rate__eta0=0.1, learning_penalty="none", batch_size=7)
            return len(said) == 2

        return Optimizer(mlp(), callbacks=[stop, Halve(rank)], verbose=1, **settings), (X, y, w, X, y)
    if case == "unfreezing":  # The others train the weights that the first process does.
        def change(o):
            assert rank == 0
            if o.n_iter_ == 2:
                o.unfreeze("W1").freeze("b2")

        frozen = {"freeze": ("W1",), "rate_factors": {"b*": 0.5}}
        return Optimizer(mlp(), callbacks=[change], **frozen, **settings), (X, y, w)
    if case == "plateau":
        plateau = ReduceOnPlateauSchedule(factor=0.5, patience=0, threshold=0.9)
        rate = LearningRateAdafactor(0.1, weight_decay=0.1, no_decay="vectors", schedule=plateau)
        return Optimizer(mlp(), **{**settings, "learning_rate": rate}), (X, y, w)
    if case == "scaled by a callback":
        def halve(o):
            assert rank == 0
            o.scale_learning_rate(o.learning_rate_scale_ / 2)

        return Optimizer(mlp(), callbacks=[halve], **settings), (X, y, w)
    if case == "failing":  # The others would wait for the first process.
        return Optimizer(mlp(), callbacks=[lambda o: 1 / 0], **settings), (X, y)
    if case == "resumed":  # It was cut off within an epoch; the first process alone has a folder with checkpoints.
        if not distributed:
            return Optimizer(mlp(), **settings), (X, y, w)
        folder = f"{sys.argv[4]}/run-{rank}"
        cut = Optimizer(mlp(), callbacks=[Checkpoint(folder, seconds=0), Cut()], **settings)
        with pytest.raises(ArithmeticError if rank == 0 else OrtPartialError):
            cut.fit(X, y, w)
        again = Optimizer(mlp(), **settings)
        again.fit = partial(again.fit, resume=folder)
        return again, (X, y, w)
    if case == "loss of the graph":
        graph = add_loss_output(mlp(), lambda y, t: abs(y - t))
        return OrtGradientOptimizer(graph, **settings), (X, y, w, X[:20], y[:20])
    if case == "few":  # Batches of two for four processes: two of them have nothing to do.
        return Optimizer(mlp(), **{**settings, "batch_size": 2}), (X, y, w)
    if case == "clipped":  # With batches that wait for their update.
        settings |= {"gradient_clipping": 0.3, "accumulate": 5, "averaging": "ema", "use_average": True}
    if case in DIFFERENT and rank == int(sys.argv[2]) - 1:
        return differ(case, settings, X, y, w)
    rows = (X, y, w, X[:20], y[:20]) if case.endswith("validation") else (X, y, w)
    return Optimizer(mlp(dtype=dtype), **settings), (X, y) if case == "unweighted" else rows


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def processes(cases, size, folder):
    """Processes that train together, as torchrun starts them."""
    port = str(free_port())
    return [
        subprocess.Popen([sys.executable, "-c", SCRIPT, str(rank), str(size), port, str(folder), *cases], text=True,
                         env=environment(Path(__file__).parent), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(size)
    ]


@ON_NEWEST
@pytest.mark.parametrize("size", [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_the_steps_of_one_process(size, tmp_path):
    """53 rows in batches of 9: processes differ by a row in each; in batches of 2, two of four have nothing to do."""
    different = DIFFERENT if size > 1 else {}
    started = processes([*different, *SAME, *COMPRESSED, "unseeded", "callbacks"], size, tmp_path)
    printed = [p.communicate(timeout=120)[1] for p in started]
    assert [p.returncode for p in started] == [0] * size, printed
    found = [np.load(tmp_path / str(rank), allow_pickle=True) for rank in range(size)]
    for case in SAME:
        made, arguments = training(case)
        alone, tol = made.fit(*arguments), 1e-12 if case == "float64" else 1e-5
        weights, states, losses, _ = found[0][case]
        assert_close(weights, alone.trained_coef_, tol)
        assert_close(states, {str(i): a for i, a in enumerate(alone.get_state("optimizer"))}, 10 * tol)
        np.testing.assert_allclose(losses, alone.train_losses_, rtol=tol)
    for case, message in different.items():
        texts = [process.pop(case) for process in found]
        assert all(re.match(f"The processes do not train the same: {message}", text) for text in texts), texts
    check_compressed(found[0], size)
    for other in found[1:]:
        for case, (weights, _, losses, _) in other.items():
            assert losses == found[0][case][2], case
            assert all((w == found[0][case][0][n]).all() for n, w in weights.items()), "the very same weights"
    assert all([len(losses) for losses in own["callbacks"][2:]] == [2, 2] for own in found)
    assert ["epoch" in text for text in printed] == [True] + [False] * (size - 1), "the first alone is heard"


def check_compressed(found, size):
    """Gradients that are rounded take nearly the same steps; those that wait are still learned."""
    assert_close(found["all of them"][0], found["weighted"][0], 1e-5)
    assert_close(found["float16"][0], found["weighted"][0], 2e-3)
    assert_close(found["half of two outputs"][0], found["labels of two outputs"][0], 2e-3)
    for case, dense in (("top k", "weighted"), ("both", "weighted"), ("half of few", "few")):
        weights, _, losses, _ = found[case]
        assert losses[-1] < losses[0] < 1.5 * found[dense][2][0], case
        assert any((w != found[dense][0][n]).any() for n, w in weights.items()), case


@pytest.mark.parametrize(
    ("case", "message"),
    [
        pytest.param("death", "ProcessError: Process 0 of 2 has lost the others: ", marks=ON_TRAINING),
        pytest.param("failing", "A callback has failed in the first process: ZeroDivisionError: division by zero",
                     marks=pytest.mark.slow),
    ],
)
def test_what_ends_one_ends_all(case, message, tmp_path):
    began = time.monotonic()
    started = processes([case], 2, tmp_path)
    printed = [p.communicate(timeout=90)[1] for p in started]
    assert time.monotonic() - began < 60
    assert 0 not in [p.returncode for p in started]
    assert message in "".join(printed)
    if case == "death":
        assert started[1].returncode == -signal.SIGKILL
        assert "One of them has ended or hangs, and its own error says why." in printed[0]


def test_settings():
    made, arguments = training("weighted", distributed=True)
    with pytest.raises(SettingError, match=r"distributed=True needs torch\.distributed\.init_process_group\('gloo'\)"):
        made.fit(*arguments)
    with pytest.raises(SettingError, match="distributed=True trains with engine='step', not 'agent'"):
        Optimizer(mlp(), distributed=True, engine="agent")
    assert made.engine_reason_ == "several processes add their gradients between two graphs"
    assert set(made.save_onnx_graph(bytes)) >= {"gradient", "update", "predict"}


@pytest.mark.slow
def test_example():
    """The same script as one process and as two."""
    script = ROOT / "examples" / "ddp_fit.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    printed = [
        subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=120, check=True,
                       env=environment()).stdout
        for command in ([sys.executable], torchrun)
    ]
    found = [re.fullmatch(r"processes (\d): accuracy ([\d.]+), sum of weights ([\d.]+)\n", text) for text in printed]
    assert [int(m[1]) for m in found] == [1, 2]
    assert all(float(m[2]) > 0.85 for m in found)
    assert np.isclose(float(found[0][3]), float(found[1][3]), rtol=1e-5)
