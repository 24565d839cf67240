"""The code of pages and the examples run, and print what they promise."""

import re
from importlib.util import find_spec

import pytest
from once import ON_BOTH
from pages import PAGES, is_foreign, needed, python_blocks, write_script
from paths import ROOT, SUPPORT
from printed import FLAGS, NumberChecker
from scripts import EXPORTERS, run

from ortpartial.runtime.device import has_training

#: Packages that most of them import.
SHARED = ("ortpartial", "sklearn.datasets", "skl2onnx", "matplotlib.pyplot")
EXAMPLES = sorted((ROOT / "examples").glob("plot_*.py"))

# torch 2.13.0 warns about its own code while torch.onnx.export decomposes a graph.
TORCH_WARNINGS = ("-W", "ignore:`isinstance(treespec, LeafSpec)` is deprecated:FutureWarning")

# What each example prints, and a bound on what it says.
PRINTED = {
    "plot_benchmark_classification": (r" 16  ortpartial +[\d.]+ +[\d.]+ +([\d.]+)", lambda accuracy: accuracy > 0.93),
    "plot_benchmark_regression": (r" 32  ortpartial +[\d.]+ +[\d.]+ +([\d.]+)", lambda score: score > 0.2),
    "plot_fine_tune_encoder": (r"last block: accuracy ([\d.]+), 12 of 27", lambda accuracy: accuracy > 0.7),
    "plot_fine_tune_llm": (r"with the adapter, ([\d.]+) of 50", lambda share: share > 0.9),
    "plot_gradient_operator": (r"from Hermite's polynomials: ([\d.]+)", lambda difference: difference < 1e-12),
    "plot_hessian_vector_product": (r"the exact Hessian: ([\d.]+)", lambda difference: difference < 1e-12),
    "plot_linear_regression_forward_backward": (r"loss +[\d.]+ -> ([\d.]+)", lambda loss: loss < 0.03),
    "plot_mixed_precision": (r"in float32 within ([\d.]+) of them", lambda share: share < 0.01),
    "plot_module_char_rnn": (r"bits for each: [\d.]+ -> ([\d.]+)", lambda bits: bits < 3.2),
    "plot_module_cnn": (r"accuracy ([\d.]+) on 397", lambda accuracy: accuracy > 0.95),
    "plot_module_gan": (r"after epoch 141: .* ([\d.]+) from", lambda distance: distance < 0.1),
    "plot_module_mlp": (r"right ([\d.]+) of the validation", lambda share: share > 0.97),
    "plot_module_transformer": (r"without a mistake: [\d.]+ -> ([\d.]+)", lambda share: share > 0.9),
    "plot_nesterov_and_penalty": (r"divides the error on new rows by ([\d.]+)", lambda ratio: ratio > 1.5),
    "plot_neural_network": (r"after: +accuracy ([\d.]+)", lambda accuracy: accuracy > 0.95),
    "plot_numpy_or_onnxruntime": (r"largest difference between the two: ([\d.]+)", lambda error: error < 1e-5),
    "plot_own_loss": (r"quantile 0\.9: ([\d.]+) of the targets", lambda share: 0.85 < share < 0.95),
    "plot_partial_and_full_training": (r"largest difference of a weight: ([\d.]+)", lambda difference: difference == 0),
    "plot_torch_and_onnx_layers": (r"after 285 steps: ([\d.e-]+)", lambda difference: difference < 1e-5),
    "plot_train_in_c": (r"steps in C: ([\d.]+)", lambda accuracy: accuracy > 0.75),
    "plot_training_handed_on": (r"without a break: ([\d.]+)", lambda difference: difference < 1e-5),
}

# What examples need that only one of the two environments has.
NEEDED = {"plot_fine_tune_llm": "onnxruntime_genai"}


def test_every_example_is_known():
    assert [e.stem for e in EXAMPLES] == sorted(PRINTED)


def compare(page, printed):
    """What blocks of a page did not print, although the page says so."""
    outputs = dict(re.findall(r"\x00(\d+)\n(.*?)(?=\n\x00|\Z)", printed, re.DOTALL))
    blocks = [(str(line), text) for _, _, line, text in python_blocks(page) if text is not None]
    return [f"{page.name}, line {line}: {text}\nis not what it prints:\n{outputs.get(line)}" for line, text in blocks
            if not NumberChecker().check_output(text, outputs.get(line, "").rstrip("\n") + "\n", FLAGS)]


def compare_example(example, folder):
    """Faults of what an example has printed and drawn."""
    pattern, holds = PRINTED[example.stem]
    printed = (folder / "printed").read_text(encoding="utf-8")
    number = re.search(pattern, printed)
    drawn = [f.name for f in (folder / "figures").iterdir()]
    is_right = number and holds(float(number[1])) and drawn == [f"{example.stem.removeprefix('plot_')}.png"]
    return [] if is_right else [f"{example.name} printed {printed!r} and drew {drawn}"]


def choose(half):
    """Pages and examples of one half, without torch and with it.

    The newest runtime has the packages that some pages and examples need beside.
    """
    for has_torch in (False, True):
        pages = [page for page in PAGES if python_blocks(page) and is_foreign(page) == has_torch]
        examples = [e for e in EXAMPLES if ("import torch" in e.read_text(encoding="utf-8")) == has_torch]
        chosen = [page for page in pages if not needed(page)][half ^ has_training() :: 2]
        chosen += [e for e in examples if e.stem not in NEEDED][half ^ has_training() :: 2]
        if half == has_training():
            chosen += [page for page in pages if needed(page) and all(map(find_spec, needed(page)))]
        if not half:
            chosen += [e for e in examples if e.stem in NEEDED and find_spec(NEEDED[e.stem])]
        yield chosen


@ON_BOTH
@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_code_of_pages_and_examples(half, tmp_path):
    """Each in a process of its own, all from one that has imported the packages that they share.

    `make test` runs one half of them on onnxruntime-training and the other on onnxruntime.
    """
    without, within = choose(half)
    folders = {source: tmp_path / source.relative_to(ROOT).with_suffix("") for source in (*without, *within)}
    scripts = {source: folder / "page.py" if source in PAGES else source for source, folder in folders.items()}
    for source, folder in folders.items():
        folder.mkdir(parents=True)
        if source in PAGES:
            scripts[source].write_text(write_script(source), encoding="utf-8")
    first, last = ([word for source in chosen for word in (scripts[source], folders[source])]
                   for chosen in (without, within))
    more = {name for source in within if source in PAGES for name in needed(source)} & {"transformers"}
    report = ""
    try:
        run(*TORCH_WARNINGS, SUPPORT / "forked.py", tmp_path / "hidden", ",".join(SHARED), *first,
            "torch", ",".join([*EXPORTERS, *more]), *last, cwd=tmp_path, timeout=580)
    except AssertionError as e:
        report = str(e)
    wrong = []
    for source, folder in folders.items():
        printed, errors = ((folder / name).read_text(encoding="utf-8") for name in ("printed", "errors"))
        if str(scripts[source]) in report:
            wrong += [f"{source.relative_to(ROOT)}:\n{errors}"]
        else:
            wrong += compare(source, printed) if source in PAGES else compare_example(source, folder)
    assert not wrong, "\n".join(wrong)


PAGE = """# A page

```python
print(1 / 3)
```

```text
{}
```
"""


@pytest.mark.parametrize(("said", "wrong"), [("0.33", 0), ("0...3", 0), ("0.34", 1)])
def test_what_a_page_says_is_compared(said, wrong, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(said))
    script = tmp_path / "script.py"
    script.write_text(write_script(page))
    assert script.read_text().splitlines()[3] == "print(1 / 3)"
    assert len(compare(page, run(script, cwd=tmp_path))) == wrong
