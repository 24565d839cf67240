"""Files of every format that STABILITY.md promises to read, and the numbers that are in them.

Run as a program, `python stored_files.py [folder]` writes those of the installed version, by default as
`tests/data/formats/<version>`: once for each version, on onnxruntime 1.20 or later. What a released version has written
is never written again.
"""

import json
import os
import pickle
import sys
from pathlib import Path

import numpy as np

import ortpartial
from ortpartial import (
    OrtGradientForwardBackwardOptimizer,
    TrainingSession,
    add_lora,
    build,
    constant,
    export_c,
    nn,
    op,
    save_adapter,
    to_training_info,
    variable,
)
from ortpartial.model import write

STORED = Path(__file__).parents[1] / "data" / "formats"
X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
Y = X[:, :2].copy()


def model():
    x = variable("x", "float32", ["N", 4])
    w = constant(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), hint="fc.weight")
    v = constant(np.linspace(1, -1, 6, dtype=np.float32).reshape(3, 2), hint="v")
    return build([x], {"y": op.Tanh(x @ w) @ v})


def optimizer(**settings):
    return OrtGradientForwardBackwardOptimizer(model(), learning_rate="adam", max_iter=3, batch_size=4, random_state=0,
                                               **settings)


def module():
    return nn.Linear(4, 2).set_optimizer("adam").compile(nn.placeholder(["N", 4]), random_state=0)


def write_files(folder):
    """A file of each format, and `numbers.npz`: what each of them holds, and what follows from it."""
    numbers = {}

    def note(name, arrays):
        numbers.update({f"{name}:{n}": np.asarray(a) for n, a in arrays.items()})

    os.makedirs(folder)
    trained = optimizer().fit(X, Y)
    trained.save_checkpoint(folder / "checkpoint.safetensors")
    trained.export_step(folder / "kit", targets=(), batch_size=4)
    write(to_training_info(trained, init="model"), folder / "training.onnx")
    write(trained.get_trained_onnx(), folder / "trained.onnx")
    (folder / "optimizer.pickle").write_bytes(pickle.dumps(trained))
    note("weights", trained.trained_coef_)
    note("predicted", {"y": trained.predict(X)})
    session = TrainingSession(folder / "training.onnx")
    export_c(trained, folder / "c", batch_size=4)
    note("state", session.state)
    (folder / "c" / "state.bin").write_bytes(c_bytes(folder / "c", session.state))
    for file in (folder / "c").iterdir():
        if file.name not in ("training.json", "state.bin"):
            file.unlink()
    note("next_loss", {"loss": session.step({"x": X[:4], "y_target": Y[:4]})["loss"]})
    trained.partial_fit(X, Y)
    note("next_weights", trained.trained_coef_)

    linear = module()
    linear.fit(X, Y, epochs=3)
    linear.save_states(folder / "states.safetensors", {"epoch": 3})
    linear.save(folder / "module.onnx", state={"epoch": 3})
    note("module", {"y": linear(X)})

    adapted = OrtGradientForwardBackwardOptimizer(add_lora(model(), "fc", rank=2, random_state=0), max_iter=3,
                                                  weights_to_train="adapter", batch_size=4, random_state=0).fit(X, Y)
    for path in ("adapter.safetensors", "adapter", "adapter.onnx_adapter"):
        save_adapter(adapted, folder / path)
    note("adapter", {"y": adapted.predict(X)})
    np.savez_compressed(folder / "numbers.npz", **numbers)


def c_bytes(folder, state):
    """The struct of a training in C with this state."""
    from ortpartial.native import Field, lay_out

    layout = json.loads((folder / "training.json").read_text())
    struct = lay_out([Field(f["name"], f["name"], np.dtype(f["dtype"]), tuple(f["shape"])) for f in layout["state"]])
    values = np.zeros((), struct.newbyteorder("<"))
    for f in layout["state"]:
        a = np.asarray(state[f["name"]], f["dtype"])
        values[f["name"]][: a.size] = a.reshape(-1)
    return values.tobytes()


if __name__ == "__main__":
    write_files(Path(sys.argv[1]) if len(sys.argv) > 1 else STORED / ortpartial.__version__)
