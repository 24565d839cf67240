"""The same training in ortpartial and in torch: matched parameters, the same batches, equal weights."""

import copy
from itertools import product

import numpy as np
import torch
from models import assert_close, weights_of
from torch import nn

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.learning.optimizers import LearningRateAdam, LearningRateSGD, LearningRateSGDNesterov

RATES = {
    "sgd": (LearningRateSGD(0.05), lambda p: torch.optim.SGD(p, lr=0.05)),
    "momentum": (LearningRateSGDNesterov(0.01, nesterov=False), lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)),
    "adam": (LearningRateAdam(0.003), lambda p: torch.optim.Adam(p, lr=0.003)),
}
LOSSES = {
    "square": ("square_error", nn.functional.mse_loss),
    "labels": ("softmax_cross_entropy", nn.functional.cross_entropy),
    "binary": ("log_loss", nn.functional.binary_cross_entropy_with_logits),
}


EPOCHS, BATCH, ROWS = 20, 8, 38  # a hundred steps; the last batch of an epoch is smaller


def torch_training(net, X, y, loss, make_rate):
    """A float64 copy of the network after the batches that the optimizer takes, and the losses of the epochs."""
    net, rng = copy.deepcopy(net).double(), np.random.default_rng(0)
    X, y = (v.double() if v.is_floating_point() else v for v in map(torch.tensor, (X, y)))
    rate, losses = make_rate(net.parameters()), np.zeros(EPOCHS)
    for epoch in range(EPOCHS):
        for rows in torch.tensor(rng.permutation(ROWS)).split(BATCH):
            rate.zero_grad()
            cost = loss(net(X[rows]), y[rows])
            cost.backward()
            rate.step()
            losses[epoch] += cost.item() * len(rows) / ROWS
    return net, losses


def matched(model, net):
    """The parameter of the network that an initializer holds, and whether it is transposed, by value."""
    names = {}
    for (name, a), (n, p) in product(weights_of(model).items(), net.named_parameters()):
        w = p.detach().numpy()
        for transposed, v in ((False, w), (True, w.T)):
            same = a.dtype == w.dtype and a.size == w.size and a.squeeze().shape == v.squeeze().shape
            if same and np.allclose(a.reshape(v.shape), v, rtol=1e-6, atol=1e-7):
                names.setdefault(name, (n, transposed))
    return names


def check(net, model, output, X, y, engine, rate, loss, seen):
    """Every parameter of the network, which reads `seen`, is in the model; both take the same steps."""
    names, (setting, make_rate), (cost, torch_cost) = matched(model, net), RATES[rate], LOSSES[loss]
    assert sorted(n for n, _ in names.values()) == sorted(dict(net.named_parameters()))
    o = Optimizer(model, list(names), engine=engine, learning_rate=setting, learning_loss={output: cost},
                  random_state=0, max_iter=EPOCHS, batch_size=BATCH).fit(X, y)
    after, losses = torch_training(net, seen, y, torch_cost, make_rate)
    trained, before = o.trained_coef_, weights_of(model)
    weights = {n: p.detach().numpy() for n, p in after.named_parameters()}
    expected = {m: (weights[n].T if t else weights[n]).reshape(trained[m].shape) for m, (n, t) in names.items()}
    assert all(np.abs(expected[m] - before[m]).max() > 1e-3 * np.abs(before[m]).max() for m in names)
    assert_close(trained, expected, 1e-5)
    np.testing.assert_allclose(o.train_losses_, losses, rtol=1e-5)
    y = after(torch.tensor(seen, dtype=torch.float64 if seen.dtype.kind == "f" else None)).detach().numpy()
    np.testing.assert_allclose(o.predict(X), y, atol=1e-5 * np.abs(y).max())
    default = Optimizer(model, learning_loss={output: cost}).weights_to_train
    # One number may be a constant of the exporter: the scale of attention, which dynamo=True writes with a rank of one.
    assert all(before[n].size == 1 for n in set(default) ^ set(names))
