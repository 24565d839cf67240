"""
Time of derivatives of a network beside torch.func, eager and compiled, and JAX.

    taskset -c 0 python bench/derivatives.py [rounds, 7]

Networks of tanh layers, 4-64-64-1 and 64-256-256-10, on one row and on 1,024. Ours are the models of `gradient_model`,
`jvp_model`, `hvp_model`, `jacobian_model` and `hessian_model` in sessions of onnxruntime; Jacobian and Hessian are
those of each row. All take turns in one process and must compute the same numbers. Printed are microseconds of a call,
medians of the rounds, and ours over each other one; JAX is left out where it is not installed. Last stand the costs of
derivatives in runs of the network.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1",
                  XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import numpy as np
import torch
from machine import write_results

from ortpartial import build, constant, gradient_model, op, variable
from ortpartial.derivatives import hessian_model, hvp_model, jacobian_model, jvp_model
from ortpartial.runtime import Session

Call = Callable[[], object]
NETS = {"4-64-64-1": (4, 64, 64, 1), "64-256-256-10": (64, 256, 256, 10)}
KINDS = ("value", "gradient", "jvp", "hvp", "jacobian", "hessian")


def draw(widths: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [((rng.normal(size=(a, b)) / np.sqrt(a)).astype(np.float32), rng.normal(size=b).astype(np.float32))
            for a, b in itertools.pairwise(widths)]


def chain(x: object, layers: list, tanh: Callable) -> object:
    """Layers with tanh between them, in any notation."""
    for i, (w, b) in enumerate(layers):
        x = (tanh(x) if i else x) @ w + b
    return x


def ours(layers: list, X: np.ndarray, V: np.ndarray) -> dict[str, Call]:
    x = variable("x", "float32", X.shape)
    y = chain(x, [(constant(w), constant(b)) for w, b in layers], op.Tanh)
    model = build([x], {"y": y})
    models = {"value": model, "gradient": gradient_model(model, ["x"], cotangents="ones"),
              "jvp": jvp_model(model, ["x"]), "hvp": hvp_model(model, ["x"]),
              "jacobian": jacobian_model(model, ["x"], per_row=True),
              "hessian": hessian_model(model, ["x"], per_row=True)}
    calls = {}
    for kind, derivative in models.items():
        session, feeds = Session(derivative), {"x": X}
        if kind in ("jvp", "hvp"):
            feeds["x_tangent"] = V
        calls[kind] = lambda session=session, feeds=feeds: next(iter(session.run(feeds).values()))
    return calls


def with_torch(layers: list, X: np.ndarray, V: np.ndarray, compiled: bool) -> dict[str, Call]:
    from torch.func import grad, hessian, jacrev, jvp, vmap

    weights = [(torch.tensor(w), torch.tensor(b)) for w, b in layers]
    x, v = torch.tensor(X), torch.tensor(V)

    def f(x: torch.Tensor) -> torch.Tensor:
        return chain(x, weights, torch.tanh)

    def total(x: torch.Tensor) -> torch.Tensor:
        return f(x).sum()

    functions = {"value": lambda: f(x), "gradient": lambda: grad(total)(x), "jvp": lambda: jvp(f, (x,), (v,))[1],
                 "hvp": lambda: jvp(grad(total), (x,), (v,))[1], "jacobian": lambda: vmap(jacrev(f))(x),
                 "hessian": lambda: vmap(hessian(f))(x)}
    return {n: torch.compile(c) if compiled else c for n, c in functions.items()}


def with_jax(layers: list, X: np.ndarray, V: np.ndarray) -> dict[str, Call]:
    import jax
    import jax.numpy as jnp

    weights, x, v = [(jnp.asarray(w), jnp.asarray(b)) for w, b in layers], jnp.asarray(X), jnp.asarray(V)

    def f(x: object) -> object:
        return chain(x, weights, jnp.tanh)

    def total(x: object) -> object:
        return f(x).sum()

    functions = {"value": lambda x, v: f(x), "gradient": lambda x, v: jax.grad(total)(x),
                 "jvp": lambda x, v: jax.jvp(f, (x,), (v,))[1],
                 "hvp": lambda x, v: jax.jvp(jax.grad(total), (x,), (v,))[1],
                 "jacobian": lambda x, v: jax.vmap(jax.jacrev(f))(x),
                 "hessian": lambda x, v: jax.vmap(jax.hessian(f))(x)}
    compiled = {n: jax.jit(g) for n, g in functions.items()}
    return {n: lambda g=g: g(x, v).block_until_ready() for n, g in compiled.items()}


def measure(calls: Mapping[str, Call], rounds: int) -> dict[str, float]:
    """Microseconds of a call, medians of rounds in which all take turns."""
    repeats, times = {}, {n: [] for n in calls}
    for n, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        repeats[n] = max(1, min(200, int(0.02 / (time.perf_counter() - start))))
    for _ in range(rounds):
        for n, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeats[n]):
                call()
            times[n].append((time.perf_counter() - start) / repeats[n] * 1e6)
    return {n: statistics.median(t) for n, t in times.items()}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    torch.set_num_threads(1)
    rows = []
    for (name, widths), n in itertools.product(NETS.items(), (1, 1024)):
        layers, rng = draw(widths), np.random.default_rng(1)
        X, V = (rng.normal(size=(n, widths[0])).astype(np.float32) for _ in range(2))
        peers = {"ours": ours(layers, X, V), "torch": with_torch(layers, X, V, False)}
        if "--compile" in sys.argv:
            peers["torch.compile"] = with_torch(layers, X, V, True)
        with suppress(ModuleNotFoundError):
            peers["JAX"] = with_jax(layers, X, V)
        print(f"\n{name}, {n} rows\n{'':10}" + "".join(f"{p:>22}" for p in peers) + "   runs of the network")
        whole = None
        for kind in KINDS:
            if kind == "hessian" and n * widths[0] ** 2 * widths[-1] > 2**22:
                continue
            results = {p: np.asarray(calls[kind]()) for p, calls in peers.items()}
            for p, r in results.items():
                np.testing.assert_allclose(r, results["torch"].reshape(r.shape), rtol=1e-3, atol=1e-4, err_msg=p)
            took = measure({p: calls[kind] for p, calls in peers.items()}, rounds)
            whole = whole or took["ours"]
            print(f"{kind:10}" + "".join(f"{t:14.1f} ({took['ours'] / t:4.2f}x)" for t in took.values())
                  + f"{took['ours'] / whole:12.1f}", flush=True)
            rows.append({"network": name, "rows": n, "derivative": kind, "runs": round(took["ours"] / whole, 1),
                         "us": {p: round(t, 2) for p, t in took.items()}})
    write_results("derivatives", {"rounds": rounds, "derivatives": rows})


if __name__ == "__main__":
    main()
