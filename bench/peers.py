"""
The contestants: classes with `epoch()`, which takes all steps of an epoch and returns their mean loss, and `weights()`,
by their names in torch. A contestant that cannot train raises an exception, whose text is printed instead.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
from models import BETA1, BETA2, MOMENTUM, RATES, Task

#: The steps of a training for which engine "auto" chooses.
PLANNED = 10**7


class Peer(Protocol):
    def epoch(self) -> float: ...
    def weights(self) -> dict[str, np.ndarray]: ...


class Cannot(Exception):
    """The reason why a contestant does not take part."""


class Ours:
    """`fit`, checks of the data, shuffling and bookkeeping included; with warm_start, each call continues the last.

    A call is told of many steps, for which "auto" chooses, and is ended by a callback after an epoch.
    """

    def __init__(self, task: Task, engine: str = "epoch"):
        from ortpartial import OrtGradientForwardBackwardOptimizer
        from ortpartial.learning_rate import LearningRateAdam, LearningRateSGD, LearningRateSGDNesterov

        eta = RATES[task.rate]
        rate = {"sgd": LearningRateSGD(eta), "nesterov": LearningRateSGDNesterov(eta, momentum=MOMENTUM),
                "adam": LearningRateAdam(eta, beta1=BETA1, beta2=BETA2, epsilon=task.epsilon)}[task.rate]
        loss = {"square": "square_error", "binary": "log_loss", "labels": "softmax_cross_entropy"}[task.model.loss]
        self.task = task
        self.optimizer = OrtGradientForwardBackwardOptimizer(
            task.onnx, task.trained, learning_rate=rate, learning_loss=loss, batch_size=task.batch,
            max_iter=max(2, PLANNED // task.steps), callbacks=[lambda _: True], engine=engine, shuffle=task.shuffle,
            warm_start=True, random_state=0, device=task.device)

    def epoch(self) -> float:
        loss = self.optimizer.fit(*self.task.data).train_losses_[-1]
        if self.optimizer.engine == "native" and self.optimizer.engine_ != "native":
            raise Cannot(self.optimizer.engine_reason_)
        if self.optimizer.engine == "auto" and self.task.device != "cpu" and self.optimizer.engine_ == "epoch":
            raise Cannot(self.optimizer.engine_reason_)  # "epoch" is a contestant of its own.
        return loss

    def weights(self) -> dict[str, np.ndarray]:
        coef = self.optimizer.trained_coef_
        return {n.removesuffix(".T"): a.T if n.endswith(".T") else a for n, a in coef.items()}


class Torch:
    """The loop of every tutorial, in eager mode."""

    def __init__(self, task: Task):
        import torch
        from nets import COSTS, net

        self.torch, self.task = torch, task
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        self.net = net(task.name).to(task.device)
        self.net.load_state_dict({n: torch.from_numpy(a) for n, a in task.start.items()}, strict=False)
        X, y = task.data
        self.X, self.y = torch.from_numpy(X).to(task.device), torch.from_numpy(y).to(task.device)
        eta, p = RATES[task.rate], self.net.parameters()
        if task.rate == "adam":
            self.optimizer = torch.optim.Adam(p, lr=eta, betas=(BETA1, BETA2), eps=task.epsilon)
        else:
            nesterov = task.rate == "nesterov"
            self.optimizer = torch.optim.SGD(p, lr=eta, momentum=MOMENTUM * nesterov, nesterov=nesterov)
        self.cost = COSTS[task.model.loss]
        self.rng = np.random.default_rng(0)

    def loss(self, x: Any, t: Any) -> Any:
        return self.cost(self.net(x), t)

    def step(self, x: Any, t: Any) -> Any:
        self.optimizer.zero_grad()
        loss = self.loss(x, t)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def epoch(self) -> float:
        order = self.torch.from_numpy(self.task.order(self.rng)).to(self.task.device)
        losses = [self.step(self.X[rows], self.y[rows]) for rows in order]
        return float(self.torch.stack(losses).mean())

    def weights(self) -> dict[str, np.ndarray]:
        return {n: p.detach().cpu().numpy() for n, p in self.net.named_parameters()}


class TorchCompile(Torch):
    """torch.compile of forward, loss and backward, and of the step of the optimizer."""

    def __init__(self, task: Task):
        super().__init__(task)
        self.torch._dynamo.reset()  # drop the code of earlier tasks, of which torch keeps eight at most
        self.loss = self.torch.compile(self.loss, dynamic=False)
        self.optimizer.step = self.torch.compile(self.optimizer.step, dynamic=False)


class TorchGraphs(Torch):
    """A whole step recorded once as a CUDA graph, and replayed."""

    def __init__(self, task: Task):
        super().__init__(task)
        if not self.torch.cuda.is_available():
            raise Cannot("CUDA graphs need a CUDA device.")
        torch = self.torch
        for group in self.optimizer.param_groups:
            group["capturable"] = True
        self.x, self.t = self.X[: task.batch].clone(), self.y[: task.batch].clone()
        before, stream = {n: p.detach().clone() for n, p in self.net.named_parameters()}, torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # Warm-up steps allocate the memory before the recording, and are undone.
            for _ in range(3):
                super().step(self.x, self.t)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(self.graph):
            self.recorded = super().step(self.x, self.t)
        with torch.no_grad():
            for n, p in self.net.named_parameters():
                p.copy_(before[n])
            for state in self.optimizer.state.values():
                for a in filter(torch.is_tensor, state.values()):
                    a.zero_()

    def step(self, x: Any, t: Any) -> Any:
        self.x.copy_(x)
        self.t.copy_(t)
        self.graph.replay()
        return self.recorded.clone()


class Jax:
    """A jitted step, and an epoch as one function by lax.scan, or a call per step."""

    def __init__(self, task: Task, scan: bool = True):
        import jax
        import jax.numpy as jnp
        import nets_jax

        self.task, self.jnp, self.rng = task, jnp, np.random.default_rng(0)
        net = nets_jax.NETS.get(task.name, nets_jax.dense)
        frozen = {n: jnp.asarray(a) for n, a in task.start.items() if ".running_" in n}
        w = {n: jnp.asarray(a) for n, a in task.start.items() if ".running_" not in n and "num_batches" not in n}
        zeros = [jax.tree.map(jnp.zeros_like, w) for _ in range({"sgd": 0, "nesterov": 1, "adam": 2}[task.rate])]
        self.carry = w, zeros, jnp.float32(0)
        self.X, self.y = map(jnp.asarray, task.data)

        def loss(w: Any, x: Any, t: Any) -> Any:
            return nets_jax.cost(task.model.loss, net({**w, **frozen}, x), t)

        def step(carry: Any, X: Any, y: Any, rows: Any) -> Any:
            w, state, k = carry
            value, g = jax.value_and_grad(loss)(w, X[rows], y[rows])
            pairs = {n: update(task, w[n], g[n], [s[n] for s in state], k + 1) for n in w}
            new = [{n: p[1][i] for n, p in pairs.items()} for i in range(len(state))]
            return ({n: p[0] for n, p in pairs.items()}, new, k + 1), value

        def epoch(carry: Any, X: Any, y: Any, order: Any) -> Any:
            carry, losses = jax.lax.scan(lambda c, rows: step(c, X, y, rows), carry, order)
            return carry, losses.mean()

        self.call, self.scan = jax.jit(epoch if scan else step, donate_argnums=0), scan

    def epoch(self) -> float:
        order, losses = self.task.order(self.rng).astype(np.int32), []
        for rows in [order] if self.scan else order:
            self.carry, loss = self.call(self.carry, self.X, self.y, rows)
            losses.append(loss)
        return float(np.mean(losses))

    def weights(self) -> dict[str, np.ndarray]:
        return {n: np.asarray(a) for n, a in self.carry[0].items()}


def update(task: Task, w: Any, g: Any, state: Any, k: Any) -> Any:
    """The weight and its state after step k."""
    rate, eta = task.rate, RATES[task.rate]
    if rate == "sgd":
        return w - eta * g, []
    if rate == "nesterov":
        v = MOMENTUM * state[0] + g
        return w - eta * (g + MOMENTUM * v), [v]
    m, v = BETA1 * state[0] + (1 - BETA1) * g, BETA2 * state[1] + (1 - BETA2) * g * g
    return w - eta * (m / (1 - BETA1**k)) / ((v / (1 - BETA2**k)) ** 0.5 + task.epsilon), [m, v]


class Onnxsim:
    """`compile_training_loop` of a model with static sizes that contains its loss, called for every step."""

    def __init__(self, task: Task):
        from onnxsim import compile_training_loop
        from onnxsim.compile_training import CustomOptimizer

        from ortpartial import build, variable

        self.task, self.rng = task, np.random.default_rng(0)
        w, g, v, eta = (variable(n, "float32", s) for n, s in (("w", [1]), ("g", [1]), ("v", [1]), ("eta", [])))
        moved = MOMENTUM * v + g
        inputs, outputs = {
            "sgd": ([w, g, eta], [w - eta * g]), "adam": ([], []),
            "nesterov": ([w, g, v, eta], [w - eta * (g + MOMENTUM * moved), moved])}[task.rate]
        step = build(inputs, {f"y{i}": v for i, v in enumerate(outputs)})
        step.opset_import[0].version = 17  # the opset of the graphs that onnxsim writes
        optimizer = CustomOptimizer(step, len(outputs) - 1) if outputs else "adam"
        self.loop = compile_training_loop(with_loss(task), "loss", task.trained, optimizer=optimizer)
        X, y = task.data
        self.X, self.y = X, np.eye(task.model.outputs, dtype=np.float32)[y] if task.model.loss == "labels" else y

    def epoch(self) -> float:
        eta = RATES[self.task.rate]
        return float(np.mean([self.loop({"x": self.X[rows], "t": self.y[rows]}, eta)
                              for rows in self.task.order(self.rng)]))

    def weights(self) -> dict[str, np.ndarray]:
        return {n.removesuffix(".T"): a.T if n.endswith(".T") else a for n, a in self.loop.parameters().items()}


def with_loss(task: Task) -> Any:
    """The network for a fixed batch with its loss appended, in operators that onnxsim differentiates."""
    import onnxsim

    from ortpartial import build, load, op, variable

    network = load(onnxsim.simplify(task.onnx, overwrite_input_shapes={"x": [task.batch, *task.model.row]})[0])
    x, y = network.inputs["x"], network.outputs["y"]
    t = variable("t", "float32", [task.batch, task.model.outputs])
    cost = {"square": lambda: (y - t) * (y - t), "binary": lambda: op.Softplus(y) - t * y,
            "labels": lambda: -op.ReduceSum(t * op.Log(op.Softmax(y)), [1])}[task.model.loss]()
    return build([x, t], {"loss": op.ReduceMean(cost, keepdims=0)})


class Sklearn:
    """`partial_fit`, one call per epoch."""

    def __init__(self, task: Task):
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import SGDClassifier, SGDRegressor
        from sklearn.neural_network import MLPClassifier, MLPRegressor

        warnings.simplefilter("ignore", ConvergenceWarning)
        widths, eta = task.model.widths, RATES[task.rate]
        if not widths:
            raise Cannot("scikit-learn has chains of layers, and no other networks.")
        self.task, (self.X, y) = task, task.data
        self.y = y if task.model.loss == "labels" else y[:, 0]
        common = {"random_state": 0, "shuffle": task.shuffle}
        self.labels = {} if task.model.loss == "square" else {"classes": np.arange(max(2, task.model.outputs))}
        if len(widths) == 2:
            if task.rate != "sgd":
                raise Cannot("scikit-learn trains linear models by plain SGD alone.")
            kind = SGDRegressor if task.model.loss == "square" else partial(SGDClassifier, loss="log_loss")
            # Its gradient of the squared error is half that of the others.
            eta *= 2 if task.model.loss == "square" else 1
            self.model = kind(penalty=None, learning_rate="constant", eta0=eta, **common)
            return
        kind = MLPRegressor if task.model.loss == "square" else MLPClassifier
        eta *= 2 if task.model.loss == "square" and task.rate != "adam" else 1
        self.model = kind(
            hidden_layer_sizes=widths[1:-1], solver="adam" if task.rate == "adam" else "sgd", batch_size=task.batch,
            momentum=MOMENTUM * (task.rate == "nesterov"), nesterovs_momentum=task.rate == "nesterov", alpha=0,
            learning_rate_init=eta, epsilon=task.epsilon, **common)
        self.model.partial_fit(self.X[: task.batch], self.y[: task.batch], **self.labels)
        del self.model._optimizer  # The first step created the weights; now they get the values of the others.
        for i, (W, b) in enumerate(zip(self.model.coefs_, self.model.intercepts_, strict=True)):
            W[...], b[...] = task.start[f"{2 * i}.weight"].T, task.start[f"{2 * i}.bias"]

    def epoch(self) -> float:
        self.model.partial_fit(self.X, self.y, **self.labels)
        halves = 2 if self.task.model.loss == "square" else 1  # its squared error is half that of the others
        return halves * float(getattr(self.model, "loss_", np.nan))

    def weights(self) -> dict[str, np.ndarray]:
        if not hasattr(self.model, "coefs_"):
            raise Cannot("scikit-learn steps after every row: a step is the time of as many rows as the batch has.")
        layers = enumerate(zip(self.model.coefs_, self.model.intercepts_, strict=True))
        return {f"{2 * i}.{n}": a for i, (W, b) in layers for n, a in (("weight", W.T), ("bias", b))}


class Numpy:
    """Forward and backward by hand."""

    def __init__(self, task: Task):
        if not task.model.widths:
            raise Cannot("The formulas in numpy are written for chains of layers alone.")
        self.task, (self.X, self.y), self.rng = task, task.data, np.random.default_rng(0)
        self.depth, self.k = len(task.model.widths) - 1, 0
        self.w = [np.array(task.start[f"{2 * i}.{n}"].T) for i in range(self.depth) for n in ("weight", "bias")]
        self.state = [[np.zeros_like(w)] * 2 for w in self.w]

    def step(self, x: np.ndarray, t: np.ndarray) -> float:
        h = [x]
        for i in range(self.depth):
            y = h[-1] @ self.w[2 * i] + self.w[2 * i + 1]
            h.append(np.maximum(y, 0) if i < self.depth - 1 else y)
        loss, dy = COSTS[self.task.model.loss](h[-1], t)
        self.k += 1
        for i in reversed(range(self.depth)):
            dh = (dy @ self.w[2 * i].T) * (h[i] > 0) if i else dy
            for j, g in ((2 * i, h[i].T @ dy), (2 * i + 1, dy.sum(0))):
                self.w[j], self.state[j] = update(self.task, self.w[j], g, self.state[j], self.k)
            dy = dh
        return loss

    def epoch(self) -> float:
        return float(np.mean([self.step(self.X[rows], self.y[rows]) for rows in self.task.order(self.rng)]))

    def weights(self) -> dict[str, np.ndarray]:
        return {f"{j // 2 * 2}.{'bias' if j % 2 else 'weight'}": w.T for j, w in enumerate(self.w)}


def square(y: np.ndarray, t: np.ndarray) -> tuple[float, np.ndarray]:
    e = y - t
    return float((e * e).mean()), e * np.float32(2 / e.size)


def binary(y: np.ndarray, t: np.ndarray) -> tuple[float, np.ndarray]:
    return float((np.logaddexp(0, y) - t * y).mean()), (1 / (1 + np.exp(-y)) - t) * np.float32(1 / y.size)


def labels(y: np.ndarray, t: np.ndarray) -> tuple[float, np.ndarray]:
    rows, p = np.arange(len(t)), np.exp(y - y.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    loss = -np.log(p[rows, t]).mean()
    p[rows, t] -= 1
    return float(loss), p * np.float32(1 / len(t))


#: The mean loss of a batch and its gradient.
COSTS: dict[str, Callable[[np.ndarray, np.ndarray], tuple[float, np.ndarray]]] = {
    "square": square, "binary": binary, "labels": labels}

OURS: dict[str, Callable[[Task], Peer]] = {
    e: partial(Ours, engine=e) for e in ("auto", "native", "epoch", "step", "agent")}
PEERS: dict[str, Callable[[Task], Peer]] = {
    **OURS, "torch": Torch, "torch.compile": TorchCompile, "torch graphs": TorchGraphs, "jax scan": Jax,
    "jax step": partial(Jax, scan=False), "onnxsim": Onnxsim, "sklearn": Sklearn, "numpy": Numpy}
IMPORTS = {**dict.fromkeys(OURS, "ortpartial"), "torch": "torch", "torch.compile": "torch._dynamo",
           "torch graphs": "torch", "jax scan": "jax",
           "jax step": "jax", "onnxsim": "onnxsim", "sklearn": "sklearn.neural_network", "numpy": "numpy"}
