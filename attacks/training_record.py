"""A stored training whose record of settings names classes that are none, and states that are not there.

An attacker hopes for a reader that imports whatever class a record names, and calls it.
"""

import json
from importlib import import_module
from pathlib import Path

from victims import optimizer

from ortpartial import OrtGradientForwardBackwardOptimizer

CALL = {"class": "os.system", "command": "touch harm"}
FORGED = {
    "a class of another module": CALL,
    "a class by its path": {"class": "pathlib.Path", "args": "harm"},
    "a builtin": {"class": "eval", "source": "open('harm', 'w')"},
    "a function as a loss": {"class": "FunctionLearningLoss", "function": "os.system"},
    "an array of objects": {"class": "array", "dtype": "O", "items": [1]},
    "a dtype that is code": {"class": "array", "dtype": "__import__('os').system('touch harm')", "items": [1]},
    "brackets in brackets": "[" * 10**5,
    "a number of many digits": 10**4000,
    "settings without end": "x" * 10**8,
}


def naive():
    module, _, name = CALL["class"].partition(".")
    getattr(import_module(module), name)(CALL["command"])
    return Path("harm").exists()


def attacks():
    for name, value in FORGED.items():
        yield name, lambda value=value: forge(value)


def forge(value):
    """Put a value in place of the optimizer of a stored training, or of the whole record."""
    stored = optimizer().get_training_onnx()
    (record,) = stored.metadata_props
    content = json.loads(record.value)
    if isinstance(value, dict):
        content["settings"]["learning_rate"] = value
    else:
        content["average_start"] = value
    record.value = value if isinstance(value, str) else json.dumps(content)
    OrtGradientForwardBackwardOptimizer.from_training_info(stored)
    return "HARMED" if Path("harm").exists() else "unharmed"
