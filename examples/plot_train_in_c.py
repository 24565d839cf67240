"""
Training in C, where there is neither Python nor onnxruntime
============================================================

A network that reads digits is exported as a training step in C99, with 27 kB of weights and states, and a few kB of
code that allocates no memory. Where it is used, the camera is mounted askew, by a quarter turn. The program below gets
labeled images batch by batch, as a microcontroller would, and learns to read them; then its weights come back. ::

    python examples/plot_train_in_c.py [folder for the figure]
"""

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, export_c, op, read_c_state, variable

DEVICE = """
#include <stdio.h>
#include "training_state.h"
static training_state state; static training_memory memory; static training_given given;
static float images[8 * 64];
static int64_t digits[8];
static float loss;
int main(void) {
    training_rows batch = {images, digits};
    state = training_initial;
    while (fread(images, sizeof images, 1, stdin) == 1 && fread(digits, sizeof digits, 1, stdin) == 1) {
        if (training_step(&state, &memory, &batch, &given, &loss)) return 1;
        fprintf(stderr, "%g\\n", loss);
    }
    return fwrite(&state, sizeof state, 1, stdout) != 1;
}
"""

X, y = load_digits(return_X_y=True)
X, y = (X / 16).astype(np.float32), y.astype(np.int64)
askew = np.rot90(X.reshape(-1, 8, 8), axes=(1, 2)).reshape(-1, 64)
rng = np.random.default_rng(0)
x = variable("x", "float32", ["N", 64])
W1 = constant(rng.normal(size=(64, 30)).astype(np.float32) / 8, hint="W1")
W2 = constant(rng.normal(size=(30, 10)).astype(np.float32) / 5, hint="W2")
network = build([x], {"scores": op.Relu(x @ W1) @ W2})
trainer = OrtGradientForwardBackwardOptimizer(network, learning_loss="softmax_cross_entropy", learning_rate="Adam",
                                              batch_size=8, max_iter=40, random_state=0)
trainer.fit(X[:900], y[:900])
upright, before = ((trainer.predict(images[1300:]).argmax(1) == y[1300:]).mean() for images in (X, askew))
print(f"upright: {upright:.3f} of the digits, askew: {before:.3f}")
batches = np.concatenate([rng.permutation(np.arange(900, 1300)).reshape(-1, 8) for _ in range(40)])
with tempfile.TemporaryDirectory() as folder:
    export_c(trainer, folder)
    Path(folder, "device.c").write_text(DEVICE)
    sources = ["device.c", "training.c", "training_state.c"]
    subprocess.run(["cc", "-O2", *sources, "-o", "device", "-lm"], cwd=folder, check=True)
    stream = b"".join(askew[rows].tobytes() + y[rows].tobytes() for rows in batches)
    done = subprocess.run([Path(folder, "device")], input=stream, capture_output=True, check=True)
    state = read_c_state(folder, done.stdout)
trainer.set_state([state[name] for name in trainer.trained_coef_])
losses = np.array(done.stderr.split(), float)
after = (trainer.predict(askew[1300:]).argmax(1) == y[1300:]).mean()
print(f"askew, after {len(losses)} steps in C: {after:.3f}")

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use("ortpartial.figure")
    fig, axes = plt.subplots(figsize=(6, 4))
    axes.semilogy(np.convolve(losses, np.ones(50) / 50, "valid"))
    axes.set(xlabel="step in C", ylabel="loss, mean of 50 steps", title="Learning to read with a camera that is askew")
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    fig.savefig(Path(sys.argv[1]) / "train_in_c.png")
