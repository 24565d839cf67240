"""Optimizers that torch does not have, written from their papers."""

import torch


class Lion(torch.optim.Optimizer):
    """X. Chen et al., Symbolic Discovery of Optimization Algorithms, 2023, algorithm 2."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (b1, b2), lr, decay = group["betas"], group["lr"], group["weight_decay"]
            for p in group["params"]:
                state = self.state[p]
                m = state.get("m", torch.zeros_like(p))
                c = b1 * m + (1 - b1) * p.grad
                p.copy_(p - lr * (c.sign() + decay * p))
                state["m"] = b2 * m + (1 - b2) * p.grad


class LAMB(torch.optim.Optimizer):
    """Y. You et al., Large Batch Optimization for Deep Learning, 2020, algorithm 2, with the identity as its φ.

    As in apex and timm, weights without decay are not adapted, unless ``always_adapt``.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, always_adapt=False):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
                                  "always_adapt": always_adapt})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (b1, b2), decay = group["betas"], group["weight_decay"]
            for p in group["params"]:
                state = self.state[p]
                t = state["t"] = state.get("t", 0) + 1
                state["m"] = m = b1 * state.get("m", torch.zeros_like(p)) + (1 - b1) * p.grad
                state["v"] = v = b2 * state.get("v", torch.zeros_like(p)) + (1 - b2) * p.grad**2
                u = m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + group["eps"]) + decay * p
                is_adapted = (decay or group["always_adapt"]) and p.norm() > 0 and u.norm() > 0
                p.copy_(p - group["lr"] * (p.norm() / u.norm() if is_adapted else 1) * u)
