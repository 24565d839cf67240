"""The operators of com.microsoft that onnxruntime's tools write, and how each has a gradient: a table for
`ortpartial/autodiff/rules/README.md`, written by `make tables`.

`python tools/language_operators.py` lists those of the packages that are installed where it runs.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from ortpartial.autodiff.grad import Composition
from ortpartial.autodiff.registry import CONSTANT, REASONS, RULES
from ortpartial.model.reader import EXPANSIONS
from ortpartial.model.straight_through import FORMULAS

DOMAIN = "com.microsoft"

#: Where each tool is in its package.
FOLDERS = {"builder": ("onnxruntime_genai", "models/builders"), "optimizer": ("onnxruntime", "transformers"),
           "quantizers": ("onnxruntime", "quantization")}

#: What they write: onnxruntime-genai 0.18.0 and onnxruntime 1.32.0.
WRITTEN = {
    "builder": (
        "Attention CausalConvWithState FastGelu GatedAdd GatedDeltaNet GatedRMSNorm GatherBlockQuantized Gelu "
        "GroupQueryAttention LinearAttention LinearAttentionGate MRotaryEmbedding MatMulBlockQuantizedFp4Weight "
        "MatMulBlockQuantizedFp8Weight MatMulNBits MoE MultiHeadAttention PagedAttention QMoE QuickGelu "
        "RotaryEmbedding SkipLayerNormalization SkipSimplifiedLayerNormalization SparseAttention "
        "VarlenCausalConvWithState"),
    "optimizer": (
        "Attention BeamSearch BiasAdd BiasGelu BiasSplitGelu DecoderMaskedMultiHeadAttention "
        "DecoderMaskedSelfAttention DynamicTimeWarping EmbedLayerNormalization FastGelu GatedRelativePositionBias "
        "Gelu GemmFastGelu GreedySearch GroupNorm GroupQueryAttention MultiHeadAttention NhwcConv PackedAttention "
        "PackedMultiHeadAttention PagedAttention QOrderedAttention QOrderedGelu QOrderedLayerNormalization "
        "QOrderedMatMul QuickGelu RelativePositionBias RemovePadding RestorePadding RotaryEmbedding Sampling "
        "SkipGroupNorm SkipLayerNormalization SkipSimplifiedLayerNormalization UnfoldTensor WhisperBeamSearch"),
    "quantizers": (
        "Attention DynamicQuantizeLSTM EmbedLayerNormalization GatherBlockQuantized Gelu MatMulBnb4 MatMulNBits "
        "QAttention QEmbedLayerNormalization QGemm QLinearConcat QLinearWhere SkipLayerNormalization"),
}

#: Names that the tools give to operators of ONNX alone.
OF_ONNX = {"DequantizeLinear", "Pad", "QLinearConv", "QuantizeLinear", "Range"}


def list_written(tool: str, names: Iterable[str]) -> list[str]:
    """Those of some operators that the source of an installed tool names."""
    package, folder = FOLDERS[tool]
    spec = find_spec(package)
    files = sorted((Path(spec.origin).parent / folder).rglob("*.py")) if spec and spec.origin else []
    texts = {node.value for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
             if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return sorted(texts & set(names) - OF_ONNX)


def describe(name: str) -> str:
    """How an operator has a gradient, or why it has none."""
    key = DOMAIN, name
    if key in RULES:
        return "composed of standard operators" if isinstance(RULES[key], Composition) else "by a rule"
    if key in FORMULAS:
        return "straight through its rounding, if `load` is told so"
    if key in EXPANSIONS:
        return "read as standard operators"
    if key in CONSTANT:
        return "zero by nature"
    return f"none: {REASONS[key]}"


def make_table() -> str:
    """The operators by how they have a gradient, with those that onnxruntime's own optimizations and a user's write."""
    written = {name for names in WRITTEN.values() for name in names.split()}
    rows = defaultdict(list)
    for name in sorted(written | {name for domain, name in {**RULES, **FORMULAS, **EXPANSIONS} if domain == DOMAIN}):
        rows[describe(name)].append(name)
    table = {"gradient": ["operators"], "---": ["---"]}
    table |= sorted(rows.items(), key=lambda row: (row[0].startswith("none"), -len(row[1])))
    return "".join(f"| {what} | {' '.join(names)} |\n" for what, names in table.items())


if __name__ == "__main__":
    from onnxruntime.capi import _pybind_state

    known = {s.name for s in _pybind_state.get_all_operator_schema() if s.domain == DOMAIN}
    for tool in FOLDERS:
        sys.stdout.write(f"{tool}: {' '.join(list_written(tool, known))}\n")
