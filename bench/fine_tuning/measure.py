"""How long the fine-tuning of an encoder takes in several libraries, beside the lines that it takes.

    python bench/fine_tuning/measure.py [--repeat 3]

Every script of this folder runs in processes of its own, with one thread: one epoch, and then, in the same process and
another folder, ten of them. Seconds are CPU time, which the load of a shared machine changes little, and the least of
all repeats: from the start of Python, so with all imports, to the end of the script with one epoch; the part of it
after model and data are there; and that part with ten epochs. Scripts of this library find the file that was exported,
and import no torch. The results are written to ``bench/results/fine_tuning.json``, with the versions of all packages,
beside rows of former calls, and printed as the table of docs/measured.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from count_lines import START, count

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "fine_tuning.json"
#: By the stem of the script, the library, the packages whose versions are told, and what it leaves to the user.
LIBRARIES = {
    "with_ortpartial": ("ortpartial", ["onnxruntime"], "the model is an ONNX file first; no workers load data"),
    "with_keras": ("Keras, on torch", ["keras"], "a model of torch is written anew; a crash costs the epoch that ran"),
    "with_skorch": ("skorch", ["skorch"], "a crash costs the epoch that ran; an ONNX file is a step of its own"),
    "with_trainer": ("Trainer", ["transformers"],
                     "rows become dicts, and splits are made by hand; an ONNX file is a step of its own"),
    "with_lightning": ("Lightning", ["lightning"],
                       "loss, step and optimizer are code, and the best weights are loaded by hand; an ONNX file is a "
                       "step of its own"),
    "lora_ortpartial": ("ortpartial, LoRA", ["onnxruntime"], "the model is an ONNX file first"),
    "lora_trainer": ("Trainer + PEFT, LoRA", ["transformers", "peft"],
                     "an ONNX file with the adapter is a step of its own"),
}

#: The rows, in place of the module that exports the model.
_DATA = "from sklearn.datasets import load_digits\n\nX, y = load_digits(return_X_y=True)\nX = X.astype('int64')\n"


def used() -> float:
    """The CPU seconds of this process and of its children."""
    each = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in each)


def run(path: Path, epochs: int) -> float:
    """The CPU seconds of a script, from where its lines count, in a new folder."""
    prelude, code = path.read_text(encoding="utf-8").split(START)
    prelude = _DATA if "export" in prelude else prelude
    for name in ("max_iter", "max_epochs", "num_train_epochs", "epochs"):
        code = code.replace(f" {name}=10", f" {name}={epochs}")
    sys.modules.pop("encoder_keras", None)  # It holds the model, which has been trained.
    with tempfile.TemporaryDirectory() as folder:
        for file in Path.cwd().glob("encoder.onnx*"):  # Its weights may stand beside it.
            shutil.copy(file, folder)  # A link to them is refused.
        (Path(folder) / "checkpoints").mkdir()
        before = Path.cwd()
        os.chdir(folder)
        names: dict[str, object] = {"__name__": "__main__"}
        exec(compile(prelude, path.name, "exec"), names)
        start = used()
        exec(compile(code, path.name, "exec"), names)
        seconds = used() - start
        os.chdir(before)
    return seconds


def work(stem: str) -> None:
    """Print the seconds of a process: from its start to the end of one epoch, of that epoch alone, and of ten."""
    path = HERE / f"{stem}.py"
    sys.path.insert(0, str(HERE))
    first, total = run(path, 1), used()
    print(json.dumps([total, first, run(path, 10)]))


def measure(stem: str, folder: Path) -> list[float]:
    """The seconds of a script in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # Installed packages have bytecode, a checkout is to have it, too.
    done = subprocess.run([sys.executable, __file__, "--work", stem], cwd=folder, env=environment, capture_output=True,
                          text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{stem}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def find_versions(packages: list[str]) -> str:
    """The versions of packages that are installed."""
    versions = []
    for package in packages:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(package)
    return ", ".join(versions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=LIBRARIES, default=[*LIBRARIES])
    parser.add_argument("--work", choices=LIBRARIES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work)
        return
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, str(HERE))
        os.chdir(folder)
        from encoder import export

        export("encoder.onnx")
        times = {stem: [] for stem in arguments.only}
        for _ in range(arguments.repeat):
            for stem in arguments.only:
                times[stem].append(measure(stem, Path(folder)))
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.exists() else {}
    for stem, each in times.items():
        library, packages, misses = LIBRARIES[stem]
        lines, statements = count(HERE / f"{stem}.py")
        start, first, ten = (round(min(seconds), 2) for seconds in zip(*each, strict=True))
        rows[stem] = {"library": library, "versions": find_versions(packages), "lines": lines,
                      "statements": statements, "start": start, "first": first, "ten": ten, "misses": misses}
    RESULTS.write_text(json.dumps({"when": datetime.now(timezone.utc).isoformat(timespec="minutes"), "rows": rows},
                                  indent=1) + "\n", encoding="utf-8")
    print("| library | lines | one epoch, from the start of Python | after model and data are there | ten epochs, warm "
          "| what it leaves to the user |")
    print("|---|--:|--:|--:|--:|---|")
    for row in rows.values():
        print(f"| {row['library']} ({row['versions']}) | {row['lines']} | {row['start']:.1f} s | {row['first']:.1f} s "
              f"| {row['ten']:.1f} s | "
              f"{row['misses']} |")


if __name__ == "__main__":
    main()
