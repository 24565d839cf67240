"""The page of examples/browser in a real browser: it trains, keeps and goes on, and its numbers equal Python's."""

import functools
import http.server
import json
import re
import runpy
import shutil
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from kits import SAMPLED, write_kit_and_data
from safetensors.numpy import load, load_file, save_file

from ortpartial.kits import TrainingKit

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "examples" / "browser"
MODULES = ROOT / "tests" / "kits" / "node" / "node_modules"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
STEPS = 50


def missing() -> str | None:
    """Why this machine cannot open the page, or None."""
    if onnxruntime.__version__ == "1.19.2":
        return "runs beside the newest onnxruntime, and this is 1.19.2"
    if CHROMIUM is None:
        return "needs Chromium, 120 or later: apt-get install chromium"
    if shutil.which("node") is None:
        return "needs Node 20 or later, and there is no `node`"
    for package, version in (("playwright-core", "1.65.1"), ("onnxruntime-web", "1.30.0")):
        if not (MODULES / package).is_dir():
            return f"needs {package} {version}, which `make node` installs"
    return None


pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


class Handler(http.server.SimpleHTTPRequestHandler):
    """What `python -m http.server` serves, without its log."""

    def log_message(self, *args):
        pass


@contextmanager
def serve(folder):
    """The address of a server of the files of a folder."""
    handler = functools.partial(Handler, directory=folder)
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}/"
        server.shutdown()


def write_site(site, monkeypatch):
    """The folder of the example after `make_kit.py` and `npm ci`, with other kits beside that of the page."""
    shutil.copytree(PAGE, site, ignore=shutil.ignore_patterns("kit", "node_modules"))
    (site / "node_modules").symlink_to(MODULES)
    monkeypatch.setattr("sys.argv", ["make_kit.py", str(site / "kit")])
    runpy.run_path(str(site / "make_kit.py"), run_name="__main__")
    for model, rate in SAMPLED:
        write_kit_and_data(site / model, model, rate, targets=("web",))


def write_bad_kits(site):
    """Kits that cannot be opened, or trained."""
    for name in ("newer", "damaged", "operator", "labels", "sizes"):
        shutil.copytree(site / "kit", site / name)
    manifest = json.loads((site / "kit" / "kit.json").read_text())
    (site / "newer" / "kit.json").write_text(json.dumps({**manifest, "version": 2}))
    steps = [{"file": "step.onnx", "batch_size": size} for size in (16, 32)]
    (site / "sizes" / "kit.json").write_text(json.dumps({**manifest, "steps": steps}))
    state = bytearray((site / "damaged" / "state.safetensors").read_bytes())
    state[-1] ^= 1
    (site / "damaged" / "state.safetensors").write_bytes(state)
    step = onnx.load(site / "operator" / "step.onnx")
    step.graph.node[0].op_type = "Imagine"
    onnx.save(step, site / "operator" / "step.onnx")
    data = load_file(site / "labels" / "data.safetensors")
    label = manifest["inputs"][1]["name"]
    save_file({**data, label: data[label] + 8}, site / "labels" / "data.safetensors")


def test_the_page_has_the_runtime_that_is_tested():
    page, tested = (json.loads((folder / "package.json").read_text()) for folder in (PAGE, MODULES.parent))
    assert page["dependencies"].items() <= tested["dependencies"].items()


def test_a_person_teaches_the_page_in_a_browser(tmp_path, monkeypatch):
    site, seen = tmp_path / "site", tmp_path / "seen"
    seen.mkdir()
    write_site(site, monkeypatch)
    write_bad_kits(site)
    names = json.dumps([model for model, _ in SAMPLED])
    driver = Path(__file__).parent / "browser.mjs"
    with serve(site) as address:
        done = subprocess.run(["node", driver, MODULES, CHROMIUM, address, seen, names], capture_output=True, text=True,
                              timeout=120)
    assert done.returncode == 0, done.stderr
    report = json.loads((seen / "report.json").read_text())
    assert report["problems"] == []
    check_weights(site, seen, report)
    check_lesson(report)
    check_files(site, seen, report)
    assert report["pressed"] == "1"
    check_killed_tab(report)
    check_sentences(report["errors"])


def check_weights(site, seen, report):
    """Weights and running statistics within 1e-4; moments, which a MaxPool on its edge changes more, within 1e-3."""
    states = {"kit": load_file(seen / "state-50.safetensors")}
    states |= {name: load(bytes(state)) for name, state in report["states"].items()}
    for name, state in states.items():
        kit = TrainingKit(site / name)
        kit.train(site / name / "data.safetensors", STEPS)
        weights = kit.manifest.weights
        for key, expected in kit.state.items():
            tolerance = 1e-4 if key in weights else 1e-3
            assert abs(state[key] - expected).max() <= tolerance * abs(expected).max(), (name, key)
    assert set(states) == {"kit", *(model for model, _ in SAMPLED)}


def check_lesson(report):
    """Of a digit that the model has never seen, it learns what it is; the page shows how, and stays responsive."""
    before, seen, after = report["first"], report["seen"], report["taught"]
    assert np.argmax(before) in range(5)
    assert report["status"] == "Training …"
    assert report["points"] == 50
    assert seen["points"] == sorted(seen["points"])
    assert len({50, *seen["points"], 150}) > 3
    assert len(set(seen["sevens"])) > 2
    assert after["points"] == 150
    assert np.argmax(after["bars"]) == 7
    assert after["bars"][7] > 0.9
    assert abs(sum(after["bars"]) - 1) < 1e-5
    assert re.match(r"It is a 7 \d+ % sure$", after["verdict"])
    assert (after["score"], after["step"]) == ("2 of 2 right", "150")
    assert re.match(r"Loss from [\d.]+ at step 1 to [\d.]+ at step 150$", after["label"])
    assert [digit["label"] for digit in report["digits"]] == [7, 7]
    assert np.median(seen["late"]) < 20, "milliseconds by which a timer of the page is late"


def check_files(site, seen, report):
    """The files that a person downloads are a model for any onnxruntime, and a state; the page takes both back."""
    assert report["files"] == ["state.safetensors", "model.onnx", "state.safetensors"]
    pixels, bars = report["digits"][-1]["pixels"], report["taught"]["bars"]
    assert np.allclose(predict(seen / "model.onnx", pixels), bars, atol=1e-5)
    assert np.allclose(predict(site / "kit" / "model.onnx", pixels), report["restarted"], atol=1e-5)
    assert not np.allclose(report["restarted"], bars, atol=0.1)
    assert report["model"] == bars
    assert report["state"] == {"step": "150", "bars": bars}
    assert (seen / "page.png").stat().st_size > 20_000


def predict(model, pixels):
    """The probabilities that onnxruntime computes in Python."""
    scores, = onnxruntime.InferenceSession(model).run(None, {"x": np.array([pixels], np.float32)})
    powers = np.exp(scores[0] - scores.max())
    return powers / powers.sum()


def check_killed_tab(report):
    """The page goes on by itself, from the steps, the losses and the digits that the browser has kept."""
    again = report["again"]
    assert again["step"] > 170
    assert again["points"] > 20
    assert again["digits"] == 3


def check_sentences(errors):
    assert re.match(r"onnxruntime 1\.30\.0 cannot run step\.onnx: .*Imagine", errors.pop("operator"))
    assert errors == {
        "newer": "kit.json is of version 2, and this runner reads version 1: take the runner that was exported with "
                 "the kit.",
        "damaged": "state.safetensors is damaged: restore a copy of it, or export the kit again.",
        "file": "state.safetensors is no model or state of this page, or a damaged one.",
        "labels": "Input 'scores_target' has values from 1 to 12, where 0 to 9 are expected, or -100 for what does not "
                  "count.",
        "sizes": "The kit has steps for batches of 16 or 32 rows, not of 20.",
    }
