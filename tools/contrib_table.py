"""All operators of com.microsoft in onnxruntime 1.19.2 and 1.32.0, and how each has a gradient: a page of the
documentation, written by `make tables`.

`python -m tools.contrib_table` prints the list of the onnxruntime that is installed, for `contrib_operators.txt`; the
package of PyPI hands out its schemas and kernels, that of onnxruntime-training-cpu does not.
"""

import sys
from collections import Counter
from pathlib import Path

from language_operators import DOMAIN, describe

#: By operator, what 1.19.2 and 1.32.0 have of it: a kernel for the CPU, the schema alone, as in code for GPUs, or
#: nothing; "training" where onnxruntime-training alone has it.
RECORD = Path(__file__).with_name("contrib_operators.txt")
_SAID = {"kernel": "yes", "schema": "not on the CPU", "training": "training", "-": ""}


def read_record() -> dict[str, tuple[str, str]]:
    """By operator, what the two runtimes have."""
    rows = (line.split() for line in RECORD.read_text(encoding="utf-8").splitlines())
    return {name: (old, new) for name, old, new in rows}


def list_installed() -> dict[str, str]:
    """By operator, what the onnxruntime that is installed has."""
    from onnxruntime.capi import _pybind_state

    kernels = {k.op_name for k in _pybind_state.get_all_opkernel_def()
               if k.domain == DOMAIN and k.provider == "CPUExecutionProvider"}
    return {s.name: "kernel" if s.name in kernels else "schema"
            for s in _pybind_state.get_all_operator_schema() if s.domain == DOMAIN}


def make_table() -> str:
    """A row for each operator, and how many there are of each kind."""
    rows = {name: (*runtimes, describe(name)) for name, runtimes in read_record().items()}
    counts = Counter(gradient.partition(":")[0] for *_, gradient in rows.values())
    lines = [f"{len(rows)} operators: " + "; ".join(f"{n} {kind}" for kind, n in counts.most_common()) + ".", "",
             "| operator | 1.19.2 | 1.32.0 | gradient |", "| --- | --- | --- | --- |"]
    lines += [f"| {name} | {_SAID[old]} | {_SAID[new]} | {gradient} |" for name, (old, new, gradient) in rows.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.writelines(f"{name} {kind}\n" for name, kind in sorted(list_installed().items()))
