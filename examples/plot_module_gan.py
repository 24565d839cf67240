"""
A GAN: two modules, two optimizers, one graph a step
====================================================

A generator turns noise into points, a discriminator tells them from real ones. `train_one_batch` says what happens with
a batch: the discriminator learns, then the generator learns to deceive the one that has just learned. It is called
once, on placeholders without data; the step that it writes, with both gradients and both updates of Adam, is one ONNX
graph. ::

    python examples/plot_module_gan.py [folder for the figure] [device]
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ortpartial import nn, op
from ortpartial.learning_rate import LearningRateAdam


class Network(nn.Module):
    def __init__(self, inputs, outputs):
        self.layers = [nn.Linear(inputs, 48), nn.Linear(48, 48), nn.Linear(48, outputs)]

    def forward(self, x):
        first, second, last = self.layers
        return last(op.LeakyRelu(second(op.LeakyRelu(first(x)))))


class GAN(nn.Module):
    def __init__(self):
        self.generator, self.discriminator = Network(4, 2), Network(2, 1)
        self.g_optimizer = nn.Optimizer(LearningRateAdam(1e-3, beta1=0.5), self.generator)
        self.d_optimizer = nn.Optimizer(LearningRateAdam(1e-3, beta1=0.5), self.discriminator)
        self.loss = nn.Loss("log_loss")

    def forward(self, noise):
        return self.generator(noise)

    def train_one_batch(self, noise, real):
        fake = self.generator(noise)
        d_loss = self.loss(self.discriminator(real), 0.9) + self.loss(self.discriminator(fake), 0)
        self.d_optimizer(d_loss)
        g_loss = self.loss(self.discriminator(fake), 1)
        self.g_optimizer(g_loss)
        return fake, {"discriminator": d_loss, "generator": g_loss}


# Real points lie on a spiral.
rng = np.random.default_rng(0)
turn = 3 * np.pi * np.sqrt(rng.uniform(size=(2000, 1)))
real = np.hstack([np.cos(turn), np.sin(turn)]) * turn / 6 + 0.03 * rng.normal(size=(2000, 2))

inputs, targets = nn.placeholder(["N", 4]), nn.placeholder(["N", 2])
gan = GAN().compile(inputs, targets=targets, random_state=0, device=[*sys.argv[2:], "cpu"][0])
noise, stages = rng.normal(size=(500, 4)), {0: None}
for epochs in (1, 30, 110):
    for _ in range(epochs):
        gan.fit(rng.normal(size=(2000, 4)), real, epochs=1, batch_size=100)
    points = stages[len(gan.history_)] = gan.predict(noise)
    distance = np.sqrt(((points[:, None] - real) ** 2).sum(-1).min(1)).mean()
    print(f"after epoch {len(gan.history_):3}: generated points are {distance:.3f} from the nearest real one")

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use("ortpartial.figure")
    fig, axes = plt.subplots(1, 4, figsize=(12, 3.2), sharex=True, sharey=True)
    for ax, (epoch, points) in zip(axes, stages.items(), strict=True):
        ax.scatter(*(real[:500] if points is None else points).T, s=4, color="gray" if points is None else "C0")
        ax.set(title=f"generated after epoch {epoch}" if epoch else "real points", aspect="equal")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    fig.savefig(folder / "module_gan.png")
