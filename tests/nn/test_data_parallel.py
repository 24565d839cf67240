"""Modules that several processes train take the steps of one, and send as many bytes as they say."""

import os
import pickle
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from once import ON_TRAINING
from onnx import load_model_from_string
from paths import ROOT, environment

from ortpartial import nn, op
from ortpartial.exceptions import DataError, ProcessError, SettingError
from ortpartial.learning.penalties import ElasticLearningPenalty
from ortpartial.training_info import TrainingSession

SCRIPT = """
import datetime, sys
import torch.distributed as dist
import test_data_parallel

rank, size, port, folder, *cases = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=int(size),
                        timeout=datetime.timedelta(seconds=60))
test_data_parallel.record(cases, int(rank), f"{folder}/{rank}")
"""
RNG = np.random.default_rng(0)
X = RNG.normal(size=(23, 4)).astype(np.float32)
Y = (X[:, :1] * X[:, 1:2] + X[:, 2:3]).astype(np.float32)
WEIGHTS = np.where(np.arange(23) % 2, 0.1, 2.0).astype(np.float32)
WIDE = RNG.normal(size=(400, 199)).astype(np.float32)
LINEAR = (WIDE[:, :20].sum(axis=1, keepdims=True) + RNG.normal(size=(400, 1))).astype(np.float32)
#: What processes do together and one alone must do as well.
SAME = ["mlp", "gan", "two losses", "clipped", "fit", "one row", "eager gan", "layers", "weights of rows",
        "ignored labels"]
#: What all say where the first process has other rows, or another step size.
DIFFERENT = {
    "other data": r"The processes do not train the same: 0 is float32 of shape \(23, 4\) and checksum \w+ in process 0 "
                  r"and float32 of shape \(23, 4\) and checksum \w+ in process 1; give every process the same model, ",
    "other settings": r"The processes do not train the same: optimizer is .*eta0=0\.2.* in process 0 and .*eta0=0\.1"}
COMPRESSED = {"float16": {"gradient_dtype": "float16"}, "top_k": {"top_k": 0.01},
              "both": {"top_k": 0.01, "gradient_dtype": "float16"}, "dense": {}}


class Net(nn.Module):
    """An MLP, with what else is asked for between its layers."""

    def __init__(self, *between):
        self.hidden, self.out = nn.Linear(4, 8), nn.Linear(8, 1)
        self.between = list(between)

    def forward(self, x):
        x = op.Tanh(self.hidden(x))
        for layer in self.between:
            x = layer(x)
        return self.out(x)


class RunningMean(nn.Module):
    """Takes off the mean of the rows, and keeps a running one."""

    def __init__(self, size):
        self.mean = nn.Buffer([size])

    def forward(self, x):
        if not self.training:
            return x - self.mean
        mean = op.ReduceMean(x, [0], keepdims=0)
        nn.current_trace().write(self.mean, 0.5 * self.mean + 0.5 * mean)
        return x - mean


class Noise(nn.Module):
    """A Dropout."""

    def forward(self, x):
        return x * nn.current_trace().draw_mask(x, 0.5) if self.training else x


class Gan(nn.Module):
    """Two networks, two optimizers: the generator learns from the critic that has been updated before."""

    def __init__(self, **settings):
        self.generator, self.critic = nn.Linear(4, 1), nn.Linear(1, 1)
        self.critic_optimizer = nn.Optimizer("adam", self.critic, **settings)
        self.optimizer = nn.Optimizer("nesterov", self.generator, **settings)

    def forward(self, z):
        return self.generator(z)

    def judge(self, x, target):
        return nn.Loss("square_error")(op.Tanh(self.critic(x)), target)

    def train_one_batch(self, z, real):
        fake = self.generator(z)
        critic_loss = self.judge(real, 1) + self.judge(fake, 0)
        self.critic_optimizer(critic_loss)
        loss = self.judge(fake, 1)
        self.optimizer(loss)
        return fake, (critic_loss, loss)


class TwoLosses(Net):
    """Weights that are updated twice, and an output of the first ones that the second loss reads."""

    def train_one_batch(self, x, y):
        output, loss = self.forward(x), nn.Loss("square_error")
        first = loss(output, y)
        self.optimizer(first)
        second = loss(self.forward(x) + output, 2 * y)
        self.optimizer(second)
        return output, {"first": first, "second": second, "both": first + second}


def compiled(case, distributed=False, rank=0):
    """A module of a case, and what a step reads."""
    settings = {"distributed": True} if distributed else {}
    batch = {"one row": (X[:1], Y[:1]), "weights of rows": (X, Y, WEIGHTS)}.get(case, (X, Y))
    if case.endswith("gan"):
        model = Gan(**settings)
    elif case == "ignored labels":  # Of the rows of the second of two processes, most.
        labels = np.where(np.arange(23) % 8 == 1, -100, Y[:, 0] > 0)
        labels[np.arange(23) % 4 == 3] = -100
        model, batch = nn.Linear(4, 3).set_optimizer("adam", **settings), (X, labels)
    elif case == "layers":
        layers = nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 3)
        model, batch = nn.Sequential(*layers).set_optimizer("adamw", **settings), (X, (Y[:, 0] > 0).astype(np.int64))
    elif case == "two losses":
        model = TwoLosses().set_optimizer("nesterov", **settings)
    elif case in COMPRESSED:
        model, batch = nn.Linear(199, 1).set_optimizer(0.01, **settings, **COMPRESSED[case]), (WIDE, LINEAR)
    else:
        between = {"statistics": [RunningMean(8)], "masks": [Noise()]}.get(case, [])
        settings |= {"penalty": ElasticLearningPenalty(l2=0.1), "gradient_clipping": 0.1 if case == "clipped" else None}
        model = Net(*between).set_optimizer("adam", **settings)
    seed = rank + 3 if case in ("unseeded", "fit") else 3
    inputs = nn.placeholder(["N", batch[0].shape[1]])
    return model.compile(inputs, random_state=seed, use_graph=not case.startswith("eager")), batch


def train(case, rank=0, **settings):
    """Weights, losses, the outputs of the first step and the bytes of a step."""
    model, batch = compiled(case, rank=rank, **settings)
    if case == "fit":
        model.fit(*batch, epochs=3, batch_size=6, X_val=X, y_val=Y,
                  callbacks=lambda m: len(m.history_) == 2 and not rank)
        losses = [[e["loss"], e["validation_loss"]] for e in model.history_]
        return model.state_dict(), losses, model.predict(X), 0
    steps = [model.train_one_batch(*batch) for _ in range(150 if case in COMPRESSED else 10)]
    losses = [list(np.ravel(list(loss.values()) if isinstance(loss, dict) else loss)) for _, loss in steps]
    group = getattr(model._program._processes, "group", None)
    return model.state_dict(), losses, steps[0][0], group.bytes_sent // len(steps) if group else 0


def differ(rank):
    """What fits say whose rows or settings are others in the first process; none trains."""
    errors = []
    for rows, rate in ((X + (rank == 0), 0.1), (X, 0.1 * 2 ** (rank == 0))):
        model = Net().set_optimizer(rate, distributed=True).compile(nn.placeholder(["N", 4]), random_state=3)
        before = model.state_dict()
        with pytest.raises(DataError) as error:
            model.fit(rows, Y, epochs=1)
        assert all((w == before[n]).all() for n, w in model.state_dict().items())
        errors.append(str(error.value))
    return errors


def record(cases, rank, path):
    """What a process does; in the end, one of them dies."""
    results = {case: train(case, distributed=True, rank=rank) for case in cases}
    model, batch = compiled("mlp", distributed=True)
    before = model.state_dict()
    with pytest.raises(DataError) as error:
        model.train_one_batch(*(a[: len(a) - 5 * rank] for a in batch))
    assert all((w == before[n]).all() for n, w in model.state_dict().items())
    results["other rows"] = str(error.value)
    results["other data"], results["other settings"] = differ(rank)
    model.train_one_batch(*batch)
    results["model"] = model.graph.SerializeToString()
    again, _ = compiled("unseeded", distributed=True, rank=rank + 1)
    if rank == 0:
        model.save_states(f"{path}.states")
        again.load_states(f"{path}.states")
    results["resumed"] = [m.train_one_batch(*batch)[1] for m in (model, again)]
    if rank == 1:
        Path(path).write_bytes(pickle.dumps(results))
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(ProcessError) as error:
        model.train_one_batch(*batch)
    results["death"] = str(error.value)
    Path(path).write_bytes(pickle.dumps(results))


def run_processes(cases, folder, size=2):
    """What the processes print to stderr, and their exit status."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    started = [subprocess.Popen([sys.executable, "-c", SCRIPT, str(rank), str(size), port, str(folder), *cases],
                                text=True, env=environment(Path(__file__).parent), stderr=subprocess.PIPE)
               for rank in range(size)]
    printed = [p.communicate(timeout=120)[1] for p in started]
    return printed, [p.returncode for p in started]


@pytest.fixture(scope="module", params=[pytest.param(2, marks=ON_TRAINING), pytest.param(3, marks=pytest.mark.slow)])
def processes(request, tmp_path_factory):
    """What the processes have recorded."""
    folder = tmp_path_factory.mktemp("processes")
    printed, codes = run_processes([*SAME, "statistics", "masks", "unseeded", *COMPRESSED], folder, request.param)
    assert codes == [0, -signal.SIGKILL, 0][: request.param], printed
    return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(request.param)]


@pytest.mark.parametrize("case", SAME)
def test_the_steps_of_one_process(case, processes):
    weights, losses, output, _ = train(case)
    for n, w in processes[0][case][0].items():
        np.testing.assert_allclose(w, weights[n], atol=2e-6, err_msg=n)
    np.testing.assert_allclose(processes[0][case][1], losses, rtol=1e-5)
    assert len(losses) == (2 if case == "fit" else 10), "the callback ends the training"
    if case not in ("fit", "one row"):
        for rank, process in enumerate(processes):
            np.testing.assert_allclose(process[case][2], output[rank :: len(processes)], atol=1e-6)


def test_the_very_same_weights(processes):
    first, *others = processes
    for case in [*SAME, "statistics", "masks", "unseeded", *COMPRESSED]:
        for other in others:
            assert other[case][1] == first[case][1], case
            for n, w in first[case][0].items():
                np.testing.assert_array_equal(other[case][0][n], w, err_msg=f"{case}: {n}")


def test_running_statistics_are_averaged(processes):
    """A mean of the rows of all processes, which the first step has added by one half."""
    model, batch = compiled("statistics")
    size = len(processes)
    means = []
    for rank in range(size):
        model, batch = compiled("statistics")
        model.train_one_batch(*(a[rank::size] for a in batch))
        means.append(model.state_dict()["between.0.mean"])
    shares = [len(X[rank::size]) / len(X) for rank in range(size)]
    assert np.abs(means[0] - means[1]).max() > 1e-2
    total = sum(s * m for s, m in zip(shares, means, strict=True))
    whole, batch = compiled("statistics")
    whole.train_one_batch(*batch)
    np.testing.assert_allclose(whole.state_dict()["between.0.mean"], total, atol=1e-6)
    assert processes[0]["statistics"][0]["between.0.mean"].any()


def test_masks_differ_by_process(processes):
    first, second = (process["masks"][2] for process in processes[:2])
    model, batch = compiled("masks")
    n = len(processes)
    alone = model.train_one_batch(*(a[::n] for a in batch))[0]
    np.testing.assert_array_equal(first, alone)
    model, batch = compiled("masks")
    assert np.abs(model.train_one_batch(*(a[1::n] for a in batch))[0] - second).max() > 0.1


def test_what_is_sent(processes):
    """200 gradients, of 4 bytes or of 2, or 1 % of them with their places; and the loss, with the sum of the shares."""
    sent = {case: processes[0][case][3] - 2 * 4 for case in COMPRESSED}
    assert sent == {"dense": 200 * 4, "float16": 200 * 2, "top_k": 2 * (4 + 4), "both": 2 * (4 + 2)}


def test_less_is_learned_alike(processes):
    weights, dense, *_ = processes[0]["dense"]
    assert dense[-1][0] < 0.1 * dense[0][0]
    np.testing.assert_allclose(processes[0]["float16"][1], dense, rtol=1e-2)
    for case in ("top_k", "both"):
        losses = processes[0][case][1]
        assert losses[0] == dense[0]
        assert losses[-1][0] < 1.5 * dense[-1][0], case
        assert any((w != weights[n]).any() for n, w in processes[0][case][0].items())


def test_the_state_of_the_first_process_is_that_of_all(processes):
    """It alone has read a file, and all go on from there."""
    losses = {loss.item() for process in processes for loss in process["resumed"]}
    assert len(losses) == 1


def test_the_model_trains_in_one_process_as_well(processes):
    """What processes have trained is a model with two entries, whose session needs no other process."""
    alone, batch = compiled("mlp")
    losses = [alone.train_one_batch(*batch)[1] for _ in range(2)]
    for process in processes:
        assert len(load_model_from_string(process["model"]).training_info) == 2
        session = TrainingSession(process["model"])
        outputs = session.step(dict(zip(session.inputs, batch, strict=True)))
        np.testing.assert_allclose(outputs["loss"], losses[1], rtol=1e-5)


def test_what_ends_one_ends_all(processes):
    assert all(p["other rows"].startswith("The rows of all processes are ") for p in processes)
    for case, message in DIFFERENT.items():
        assert all(re.match(message, p[case]) for p in processes), processes[0][case]
    assert re.match(r"Process 0 of \d has lost the others: .* its own error says why\.", processes[0]["death"])


def test_settings():
    model, batch = compiled("mlp", distributed=True)
    with pytest.raises(SettingError, match=r"distributed=True needs torch\.distributed\.init_process_group\('gloo'\)"):
        model.train_one_batch(*batch)
    for settings, message in [({"gradient_dtype": "float8"}, "gradient_dtype is 'float16' or None, not 'float8'"),
                              ({"top_k": 10}, "top_k is the share of the gradients that are sent, .* not 10"),
                              ({"top_k": 0.1, "distributed": False}, "set distributed=True as well")]:
        with pytest.raises(SettingError, match=message):
            nn.Optimizer("adam", **{"distributed": True, **settings})
    gan = Gan(distributed=True)
    gan.critic_optimizer = nn.Optimizer("adam", gan.critic)
    with pytest.raises(SettingError, match="trains in one process, and another optimizer of the module in several"):
        gan.compile(nn.placeholder(["N", 4]), targets=nn.placeholder(["N", 1]))


@pytest.mark.slow
def test_example():
    """The same script as one process and as two."""
    script = ROOT / "examples" / "ddp_module.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    printed = [subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=120, check=True,
                              env=environment()).stdout for command in ([sys.executable], torchrun)]
    matches = [re.fullmatch(r"processes (\d): accuracy ([\d.]+), sum of weights ([\d.]+)\n", text) for text in printed]
    assert [int(m[1]) for m in matches] == [1, 2]
    assert all(float(m[2]) > 0.85 for m in matches)
    assert np.isclose(float(matches[0][3]), float(matches[1][3]), rtol=1e-4)
