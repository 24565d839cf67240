"""Careless settings: whatever a public constructor is given, it takes it or says in a sentence what it expects."""

import inspect
import warnings

import numpy as np
import pytest

import ortpartial
from ortpartial import build, callbacks, constant, learning_loss, learning_penalty, learning_rate, nn, op, variable
from ortpartial.exceptions import OrtPartialError


def model():
    x = variable("x", "float32", ["N", 4])
    w = constant(np.ones((4, 2), np.float32), hint="w")
    return build([x], {"y": op.Tanh(x @ w)})


MODEL = model().SerializeToString()


def divide(*_):
    return 1 / 0


LOOP: list[object] = []
LOOP.append(LOOP)
#: What every setting is given.
VALUES: list[object] = [
    LOOP,
    None, True, -1, 0, 10**400, -(10**400), 2.5, float("nan"), float("inf"), 1e308, "", "x",
    "x" * 10**5, "\x1b[2J\0", b"", b"x", [], {}, (), [[]], [None], {"a": 1}, {1: 2}, {()}, object(), object, int,
    np.float32(1), np.int8(1), np.array(0), np.zeros(0), np.zeros((2, 2)), np.array(["a"]),
    np.datetime64(0, "s"), 1j, print,
    divide, range(3), slice(1), type, Ellipsis]
#: What is needed for the parameters without a default.
BASES = {"OrtGradientForwardBackwardOptimizer": {"model": MODEL}, "OrtGradientForwardBackward": {"model": MODEL},
         "OnnxRegressor": {"model": MODEL}, "OnnxClassifier": {"model": MODEL}, "OnnxLayer": {"model": MODEL},
         "Linear": {"in_features": 2, "out_features": 3}, "Embedding": {"num_embeddings": 3, "embedding_dim": 2},
         "Conv1d": {"in_channels": 1, "out_channels": 1, "kernel_size": 1},
         "Conv2d": {"in_channels": 1, "out_channels": 1, "kernel_size": 1},
         "BatchNorm1d": {"num_features": 2}, "LayerNorm": {"normalized_shape": 2},
         "load": {"model": MODEL}, "gradient_model": {"model": MODEL}, "add_lora": {"model": MODEL, "targets": "*"}}
#: Functions of a model; others read or write files, draw, or take what no table can make.
FUNCTIONS = ("load", "gradient_model", "add_lora")


def find_rows():
    """Every public class and function that can be called with its bases, and each of its settings."""
    rooms = (ortpartial, learning_loss, learning_penalty, learning_rate, callbacks, nn)
    every = {n: getattr(room, n) for room in rooms for n in room.__all__}
    for name, value in every.items():
        is_class = inspect.isclass(value) and not issubclass(value, BaseException) and not inspect.isabstract(value)
        if not (is_class or name in FUNCTIONS):
            continue
        try:
            parameters = inspect.signature(value).parameters.values()
        except ValueError:
            continue
        base = BASES.get(name, {})
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if any(p.default is p.empty and p.name not in base for p in named):
            continue
        yield from ((name, value, base, p.name) for p in named)


ROWS = list(find_rows())


def refuse(call, base, name, value):
    """Where it ends otherwise than in an object or a sentence of the library, how."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(**{**base, name: value})
    except OSError:  # the system's own, of a path
        return ""
    except ZeroDivisionError:  # of the function that was given
        return "" if value is divide else "ZeroDivisionError"
    except OrtPartialError as e:
        text = str(e)
        return f"{len(text)} characters" if len(text) >= 1000 else "" if text else "no message"
    except Exception as e:
        return f"{type(e).__name__}: {str(e)[:100]}"
    return ""


def show(value):
    return f"{type(value).__name__} {str(value)[:20]}"


def test_the_table_is_long():
    assert len(ROWS) > 200


@pytest.mark.parametrize("part", range(4))
def test_settings_of_a_sample(part, tmp_path, monkeypatch):
    """Every setting is given one of the values."""
    monkeypatch.chdir(tmp_path)
    failures = []
    for k, (name, call, base, setting) in enumerate(ROWS):
        value = VALUES[7 * k % len(VALUES)]
        if k % 4 == part and (text := refuse(call, base, setting, value)):
            failures.append((name, setting, show(value), text))
    assert failures == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({row[0] for row in ROWS}))
def test_settings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = [row for row in ROWS if row[0] == name]
    failures = [(setting, show(value), text) for _, call, base, setting in settings for value in VALUES
                if (text := refuse(call, base, setting, value))]
    assert failures == []
