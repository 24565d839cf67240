"""
Time of a step with gradient clipping, accumulation and averages of the weights, beside the loops of torch.

    python bench/settings.py [steps, 1000] [rows of a batch, 10] [rounds, 7]

A network 20-100-1 takes the steps of an epoch on one core, in rounds of all settings one after the other.
Microseconds a step are the smallest of all rounds; "cost" is that of the setting, beside a step without it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ortpartial import (
    GradientClipping,
    OrtGradientForwardBackwardOptimizer,
    StochasticWeightAverage,
    build,
    constant,
    op,
    variable,
)

SETTINGS: dict[str, dict[str, Any]] = {
    "none": {}, "norm": {"gradient_clipping": 1.0}, "value": {"gradient_clipping": GradientClipping(value=0.1)},
    "accumulate": {"accumulate": 4}, "ema": {"averaging": "ema"},
    "swa": {"averaging": StochasticWeightAverage(start=0)},
}
RATES = {"SGD": torch.optim.SGD, "Adam": torch.optim.Adam}


def draw_weights() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(rng.normal(size=shape) / 5).astype(np.float32) for shape in ((20, 100), (100,), (100, 1), (1,))]


def with_ortpartial(rate: str, setting: str, X: np.ndarray, y: np.ndarray, batch: int) -> Callable[[], object]:
    """A function that trains for an epoch."""
    x = variable("x", "float32", ["N", 20])
    W, b, v, c = (constant(a, hint=n) for n, a in zip("WbvC", draw_weights(), strict=True))
    model = build([x], {"y": op.Relu(x @ W + b) @ v + c})
    o = OrtGradientForwardBackwardOptimizer(model, learning_rate=rate, batch_size=batch, shuffle=False,
                                            random_state=0, **SETTINGS[setting])
    return lambda: o.partial_fit(X, y)


def with_torch(rate: str, setting: str, X: np.ndarray, y: np.ndarray, batch: int) -> Callable[[], object]:
    """A function that trains for an epoch, as a loop in torch is usually written."""
    weights = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor(a)) for a in draw_weights()])
    optimizer, rows, targets = RATES[rate](weights.parameters(), lr=1e-3), torch.tensor(X), torch.tensor(y)
    average = get_ema_multi_avg_fn(0.999) if setting == "ema" else None
    averaged, every = AveragedModel(weights, multi_avg_fn=average), 4 if setting == "accumulate" else 1

    def epoch() -> None:
        for k, (part, t) in enumerate(zip(rows.split(batch), targets.split(batch), strict=True), 1):
            W, b, v, c = weights
            loss = torch.nn.functional.mse_loss(torch.relu(part @ W + b) @ v + c, t)
            (loss / every if every > 1 else loss).backward()
            if k % every:
                continue
            if setting == "norm":
                torch.nn.utils.clip_grad_norm_(weights.parameters(), 1.0)
            if setting == "value":
                torch.nn.utils.clip_grad_value_(weights.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            if setting in ("ema", "swa"):
                averaged.update_parameters(weights)

    return epoch


def measure(epochs: dict[Any, Callable[[], object]], steps: int, rounds: int) -> Iterator[tuple[Any, float]]:
    """Microseconds a step of each, the smallest of all rounds."""
    times: dict[Any, list[float]] = {key: [] for key in epochs}
    for epoch in epochs.values():
        epoch()
    for _ in range(rounds):
        for key, epoch in epochs.items():
            start = time.perf_counter()
            epoch()
            times[key].append(time.perf_counter() - start)
    return ((key, min(each) / steps * 1e6) for key, each in times.items())


def main(steps: int = 1000, batch: int = 10, rounds: int = 7) -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    X = rng.normal(size=(steps * batch, 20)).astype(np.float32)
    y = X[:, :3].sum(axis=1, keepdims=True)
    print(f"{'':16}" + "".join(f"{f'{name} us':>14}{'cost':>8}" for name in ("ortpartial", "torch")))
    for rate in RATES:
        epochs = {(s, make): make(rate, s, X, y, batch) for s in SETTINGS for make in (with_ortpartial, with_torch)}
        times = dict(measure(epochs, steps, rounds))
        for s in SETTINGS:
            pairs = [(times[s, make], times[s, make] - times["none", make]) for make in (with_ortpartial, with_torch)]
            print(f"{rate:5}{s:11}" + "".join(f"{us:14.1f}{cost:8.1f}" for us, cost in pairs), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
