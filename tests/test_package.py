"""The face of the package: every piece by one import, and nothing heavy imported before it is used."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from paths import environment

import ortpartial
from ortpartial import learning
from ortpartial.installation import install_command


def run(program):
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_importing_it_imports_no_runtime():
    heavy = "sorted({'onnxruntime', 'torch', 'sklearn'} & {*sys.modules})"
    assert run(f"import ortpartial, sys; dir(ortpartial); print({heavy})") == "[]"


def test_what_few_programs_need_is_imported_on_first_use():
    names = ("adapters", "artifacts", "kits", "native", "nn", "plots", "torch", "training_info")
    late = f"sorted(n for n in {names} if f'ortpartial.{{n}}' in sys.modules)"
    count = "sum(n.split('.')[0] in ('ortpartial', 'tqdm') for n in sys.modules)"
    used = "ortpartial.add_lora; ortpartial.artifacts"
    first, second = run(f"import ortpartial, sys; print({late}, {count}); {used}; print({late})").splitlines()
    late, modules = first.rsplit(" ", 1)
    assert (late, second) == ("[]", "['adapters', 'artifacts']")
    assert int(modules) <= 325, "Each module takes about half a millisecond of every start."


def test_every_piece_is_a_name_of_the_package():
    pieces = [name for name in learning.__all__ if re.search("(Loss|Penalty|Schedule)$|Rate", name)
              and isinstance(getattr(learning, name), type)]
    assert len(pieces) > 25
    assert {*pieces, "grad", "load", "op", "stop_gradient", "LossScale"} <= {*ortpartial._ROOMS}
    assert all(getattr(ortpartial, name) is getattr(learning, name) for name in pieces)


def test_every_name_is_listed():
    """And no other, such as what the module itself imports."""
    lazy = {"OnnxClassifier", "OnnxLayer", "OnnxRegressor", "nn", "torch"}
    assert {n for n in dir(ortpartial) if not n.startswith("__")} == {*ortpartial.__all__, *lazy}
    assert len({*ortpartial.__all__, *lazy}) <= 50


def test_all_of_it_is_imported_by_a_star():
    program = "from ortpartial import *; print('OnnxClassifier' in globals(), load.__module__)"
    assert run(program) == f"{find_spec('sklearn') is not None} ortpartial.model.load"
    hide = "import sys; sys.modules['sklearn'] = None; sys.modules['scipy'] = None"
    assert run(f"{hide}; import importlib.machinery, importlib.util; importlib.util.find_spec = "
               f"lambda name: None; {program}") == "False ortpartial.model.load"


def test_the_layer_is_imported_when_it_is_asked_for():
    pytest.importorskip("torch")
    from ortpartial import OnnxLayer

    assert OnnxLayer is ortpartial.torch.OnnxLayer


def test_estimators_are_imported_when_they_are_asked_for():
    pytest.importorskip("sklearn")
    from ortpartial import OnnxClassifier, OnnxRegressor, estimator

    assert (OnnxClassifier, OnnxRegressor) == (estimator.OnnxClassifier, estimator.OnnxRegressor)


@pytest.mark.parametrize("missing", ["sklearn", "scipy"])
def test_estimators_without_scikit_learn(missing):
    hide = f"import sys; sys.modules[{missing!r}] = None"
    ask = "try:\n    from ortpartial import OnnxRegressor\nexcept ImportError as e:\n    print(e)"
    assert run(f"{hide}\n{ask}") == ("OnnxRegressor and OnnxClassifier need scikit-learn, which is not installed: "
                                    f"run {install_command('sklearn')}.")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "missing"), [("OnnxRegressor", "sklearn"), ("OnnxLayer", "torch"),
                                               ("torch", "torch"), ("estimator.OnnxClassifier", "scipy")])
def test_an_attribute_of_a_missing_part(name, missing):
    """It is not there, for all that looks through a module, and the error tells how to install it."""
    owner, _, name = f"ortpartial.{name}".rpartition(".")
    hide = f"import sys, inspect; sys.modules[{missing!r}] = None; import {owner} as m"
    ask = f"try:\n    m.{name}\nexcept AttributeError as e:\n    print(e)"
    look = f"assert not hasattr(m, {name!r}); import pydoc; inspect.getmembers(m); pydoc.render_doc(m)"
    assert "which is not installed: run `pip install '.[" in run(f"{hide}\n{ask}\n{look}")


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="module 'ortpartial' has no attribute 'layers'"):
        _ = ortpartial.layers


def test_types_are_shipped_and_told():
    """Which types they are, mypy checks in contracts/typed_use.py."""
    assert (Path(ortpartial.__file__).parent / "py.typed").exists()
    cls = ortpartial.OrtGradientForwardBackwardOptimizer
    assert {f.__annotations__["return"] for f in (cls.fit, cls.partial_fit, cls.set_params)} == {"Self"}
    assert cls.predict.__annotations__["return"] == "np.ndarray | dict[str, np.ndarray]"


def test_importing_it_leaves_the_garbage_collector_as_it_was():
    """And looks for no garbage meanwhile, even where the import fails."""
    counts = "sum(generation['collections'] for generation in gc.get_stats()[1:])"
    assert run(f"import onnx, gc; a = {counts}; import ortpartial; print({counts} - a, gc.isenabled())") == "0 True"
    assert run("import gc; gc.disable(); import ortpartial; print(gc.isenabled())") == "False"
    fails = ("import gc, sys; sys.modules['onnx'] = None\ntry:\n    import ortpartial\n"
             "except ImportError:\n    print(gc.isenabled())")
    assert run(fails) == "True"
