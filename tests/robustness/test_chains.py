"""Random chains of large tensors: layers and engines beside torch in float64."""

import numpy as np
import pytest
import torch
from chains import SAMPLE, Chain, draw_chain, measure, size_of, take_steps
from doubles import evaluate_doubles

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.autodiff import grad
from ortpartial.exceptions import ModelError, UntranslatableError
from ortpartial.graph import build, variable
from ortpartial.model import load
from ortpartial.rewrites import rewrite_model, rewrite_step
from ortpartial.runtime.device import has_training
from ortpartial.torch import OnnxLayer

#: By name: the settings of an optimizer, and whether the engine may refuse a chain by name.
ENGINES = {
    "step": ({"engine": "step"}, False), "epoch": ({"engine": "epoch"}, False),
    "in place": ({"engine": "step", "checkpointing": "auto"}, False), "native": ({"engine": "native"}, True),
    **({"agent": ({"engine": "agent"}, True)} if has_training() else {})}
REFUSALS = ("is not written in C", "are not written in C", "not among the operators that are written in C",
            "agent cannot differentiate", "does not differentiate the graph", "has no kernel for", "narrowing_error")


def gradients(chain: Chain, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """The output and its gradients by input and weights, for the cotangent t, by torch."""
    weights = {n: torch.from_numpy(a).to(dtype).requires_grad_() for n, a in chain.weights.items()}
    x = torch.from_numpy(chain.x).to(dtype).requires_grad_()
    y = chain(x, weights)
    dx, *dw = torch.autograd.grad(y, [x, *weights.values()], torch.from_numpy(chain.t).to(dtype))
    return {"y": y.detach().numpy(), "x": dx.numpy(), **{n: d.numpy() for n, d in zip(weights, dw, strict=True)}}


def layer_gradients(chain: Chain, engine: str) -> dict[str, np.ndarray]:
    """The same by `OnnxLayer`."""
    layer = OnnxLayer(chain.model, trainable=list(chain.weights), engine=engine)
    x = torch.from_numpy(chain.x).requires_grad_()
    y = layer(x)
    y.backward(torch.from_numpy(chain.t))
    weights = {n: layer.get_parameter(layer.state_names[n]).grad.numpy() for n in chain.weights}
    return {"y": y.detach().numpy(), "x": x.grad.numpy(), **weights}


def exact_gradients(chain: Chain) -> dict[str, np.ndarray]:
    """The same by the graph of the layer, each of its operators computed by numpy in float64."""
    model = rewrite_model(load(chain.model, batch={"x": chain.x.shape}, variables=list(chain.weights)))
    (x,), (y,) = model.inputs.values(), model.outputs.values()
    weights, t = [model.initializers[n] for n in chain.weights], variable("t", "float32", chain.t.shape)
    names = ["x", *chain.weights]
    outputs = {"dy" if n == "y" else f"d{n}": v for n, v in zip(
        ["y", *names], [y, *grad(y, [x, *weights], [t])], strict=True)}
    computed = evaluate_doubles(build([x, t, *weights], rewrite_step(outputs)),
                                {x.hint: chain.x, "t": chain.t, **chain.weights})
    return {n: computed[f"d{n}"] for n in ["y", *names]}


def choose_rate(chain: Chain) -> float:
    """A learning rate with which a step changes a weight by about 2 %."""
    weights = {n: torch.from_numpy(a).double().requires_grad_() for n, a in chain.weights.items()}
    loss = (chain(torch.from_numpy(chain.x).double(), weights) - torch.from_numpy(chain.t).double()).square().mean()
    ratios = [abs(a).max() / d.abs().max().item() for a, d in zip(
        chain.weights.values(), torch.autograd.grad(loss, list(weights.values())), strict=True) if d.abs().max() > 1e-9]
    return float(np.float32(0.02 * min(ratios, default=1.0)))


def check_chain(seed: int, engines: list[str]) -> None:
    chain = draw_chain(seed, size_of(seed))
    right, rounded = gradients(chain, torch.float64), gradients(chain, torch.float32)
    base = {n: measure(rounded[n], right[n], chain.kinks) for n in right}
    wrong, exact = {}, {}
    for engine in ("step", "auto") if has_training() else ("step",):
        actual = layer_gradients(chain, engine)
        for n in right:
            error, limit = measure(actual[n], right[n], chain.kinks), max(3e-5, 20 * base[n])
            if error > limit:
                # onnxruntime sums a whole tensor one by one, and torch in pairs. Rounding alone, of less than ten
                # times the limit, is excused: the graph itself is right to the digits of its float32 constants.
                exact = exact or exact_gradients(chain)
                if error > 10 * limit or measure(exact[n], right[n], chain.kinks) > 1e-7:
                    wrong[f"layer, {engine}, {n}"] = error
    rate = choose_rate(chain)
    expected, by_torch = (take_steps(chain, rate, 2, dtype) for dtype in (torch.float64, torch.float32))
    for name in engines:
        settings, may_refuse = ENGINES[name]
        try:
            o = Optimizer(chain.model, list(chain.weights), learning_rate=rate, max_iter=2, batch_size=len(chain.x),
                          shuffle=False, **settings).fit(chain.x, chain.t)
        except (ModelError, UntranslatableError) as e:
            if may_refuse and any(text in str(e) for text in REFUSALS):
                continue
            raise
        for (n, w), trained in zip(expected.items(), o.get_state(), strict=True):
            change, first = w - chain.weights[n], chain.weights[n].astype(np.float64)
            # A weight is rounded twice, however little it changes.
            rounding = 2 * np.spacing(np.float32(abs(w).max())) / max(abs(change).max(), 1e-30)
            error = measure(trained - first, change, chain.kinks)
            usual = max(measure(by_torch[n] - first, change, chain.kinks), max(base.values()))
            if error > max(1e-4, 20 * usual) + rounding + (2e-3 if chain.kinks else 0):
                wrong[f"{name}, {n}"] = error
    assert not wrong, f"seed {seed}: {wrong} in {chain.names}"


@pytest.mark.parametrize("seed", SAMPLE)
def test_a_sample_of_chains(seed):
    check_chain(seed, [list(ENGINES)[seed % 3]] if seed % 10 else list(ENGINES))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300))
def test_chains(seed):
    check_chain(seed, list(ENGINES))
