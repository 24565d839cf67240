"""Run-time values: operators that read an index, a length or a size when the graph runs, and hostile numbers for it.

A row is a body that computes `r` from `h`, a float[4,4] that depends on the weight, and from `i`, the number that the
operator reads. `model` makes `i` an input of the model, or computes it from one.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

__all__ = ["HARMLESS", "ROWS", "Row", "feeds", "model"]

INDICES = (-1, -4, -5, 3, 4, 5, 10**6, -(10**6), 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
#: The last of them overflow in a product with 4 or with one another, to a few elements.
SIZES = (0, -1, -2, 1, 3, 5, 2**31, 2**33, 2**40, 2**62, 2**63 - 1, -(2**31), -(2**40), -(2**63), 2**32 + 1, 2**62 + 1,
         2**63 + 2 - 2**64)
AXES = (-1, -2, -3, 0, 1, 2, 99, 2**31, 2**62, -(2**31), 2**63 - 1, -(2**63))
REALS = (np.nan, np.inf, -np.inf, 0.0, -1.0, 0.5, 1e-30, 1e4, 3e9, -3e9, 1e19, -1e19, 1e30, -1e30)
BOOLS = (True, False)


@dataclass(frozen=True)
class Row:
    """One input of an operator: a body, what is valid, and what replaces its last element and all of them."""

    body: str
    valid: np.ndarray
    hostile: tuple[Any, ...]
    stored: dict[str, Any] = field(default_factory=dict)
    opset: int = 21
    more: tuple[Any, ...] = ()

    def values(self) -> list[np.ndarray]:
        """The valid array, and it with hostile numbers, for its last element and for all."""
        values = [self.valid]
        for number in self.hostile:
            if self.valid.dtype.kind in "iu":
                limits = np.iinfo(self.valid.dtype)
                if not limits.min <= number <= limits.max:
                    continue
            a = self.valid.copy()
            a.flat[-1] = number
            values.append(a)
            if a.size > 1:
                values.append(np.full_like(a, number))
        return [*values, *(np.asarray(m, self.valid.dtype) for m in self.more)]

    @property
    def shape(self) -> list[int | str]:
        """The shape of `i`, with names for the sizes that differ between values."""
        shapes = {v.shape for v in self.values()}
        first = self.valid.shape
        return [n if all(s[k] == n for s in shapes) else f"I{k}" for k, n in enumerate(first)]


def ints(*numbers, dtype=np.int64):
    return np.array(numbers, dtype)


def one(number, dtype=np.int64):
    return np.array(number, dtype)


def reals(*shape):
    return np.linspace(0.1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def image(body, **stored):
    """A body that starts from `a`, a float[1,1,4,4]."""
    return {"body": f"a = Reshape(h, four) {body}", "stored": {"four": ints(1, 1, 4, 4), **stored}}


def row(body, valid, hostile, *more, opset=21, **stored):
    return Row(body, np.asarray(valid), hostile, stored, opset, more)


def picture(body, valid, hostile, *more, opset=21, **stored):
    return row(f"a = Reshape(h, four) {body}", valid, hostile, *more, opset=opset, four=ints(1, 1, 4, 4), **stored)


FOUR, GRID = ints(0, 1, 2, 3), np.tile(ints(0, 1, 2, 3), (4, 1))
REGIONS = np.tile(np.array([0, 0, 2, 2], np.float32), (4, 1))
FAR = tuple(np.tile([-n, -n, n, n], (4, 1)) for n in (1e2, 1e4, 1e5, 1e6, 1e9))
SEQUENCE = "s = SequenceConstruct(h, h)"
RECURRENT = {"W": 1, "GRU": 3, "LSTM": 4}


def recurrent(op_type, gates, direction):
    n = 2 if direction == "bidirectional" else 1
    return row(f'a = Reshape(h, three) r = {op_type}<hidden_size = 2, direction = "{direction}">(a, W, R, , i)',
               ints(4, 3, 2, 1, dtype=np.int32), INDICES, three=ints(4, 4, 1), W=reals(n, 2 * gates, 1),
               R=reals(n, 2 * gates, 2))


def pad(mode):
    return row(f'r = Pad<mode = "{mode}">(h, i)', ints(1, 1, 1, 1), (*SIZES, -3, -4, -5, -8, 4, 8, 100, 10**5),
               [0, 10**7, 0, 0], [0, 0, 0, 10**7])


def counts(op_type, axes="axes"):
    return row(f"r = {op_type}(h, i)", ints(1), AXES)


def scatter(reduction):
    return row(f'r = ScatterElements<axis = 1, reduction = "{reduction}">(h, i, h)', GRID, INDICES)


def scatter_nd(reduction):
    return row(f'r = ScatterND<reduction = "{reduction}">(h, i, u)', ints([0], [1]), INDICES, u=reals(2, 4))


def mel(position):
    valid = [one(4), one(8), one(8000), one(0, np.float32), one(4000, np.float32)]
    names = ["i" if k == position else f"m{k}" for k in range(5)]
    stored = {f"m{k}": v for k, v in enumerate(valid) if k != position}
    return row(f"m = MelWeightMatrix({', '.join(names)}) e = ReduceSum<keepdims = 0>(m) r = Mul(h, e)",
               valid[position], SIZES if position < 3 else REALS, **stored)


def nms(position, valid, hostile):
    stored = {"n0": reals(1, 3, 4), "n1": reals(1, 1, 3), "n2": ints(2), "n3": reals(1) * 5, "n4": reals(1)}
    del stored[f"n{position}"]
    names = ["i" if k == position else f"n{k}" for k in range(5)]
    return row(f"n = NonMaxSuppression({', '.join(names)}) f = Cast<to = 1>(n) e = ReduceSum<keepdims = 0>(f) "
               "r = Mul(h, e)", valid, hostile, **stored)


def span(position, dtype):
    names = ["i" if k == position else f"l{k}" for k in range(3)]
    stored = {f"l{k}": one(v, dtype) for k, v in enumerate((0, 4, 1)) if k != position}
    hostile = SIZES if dtype == np.int64 else REALS
    return row(f"l = Range({', '.join(names)}) f = Cast<to = 1>(l) e = ReduceSum<keepdims = 0>(f) r = Mul(h, e)",
               one((0, 4, 1)[position], dtype), hostile, **stored)


def window(op_type):
    return row(f"f = {op_type}(i) e = ReduceSum<keepdims = 0>(f) r = Mul(h, e)", one(4), SIZES)


def loop(arguments, valid, hostile, handed="Identity(c)", **stored):
    return row(f"r = Loop({arguments}, h) <body = body (int64 k, bool c, float[4,4] a) => (bool d, float[4,4] b) "
               f"{{ d = {handed} b = Mul(a, z) }}>", valid, hostile, z=reals(1), **stored)


def positions(op_type, arguments):
    return row(f"{SEQUENCE} t = {op_type}({arguments}) r = ConcatFromSequence<axis = 0>(t)", one(0), INDICES)


def attention(op_type_opset, arguments, valid, hostile, *more):
    return picture(f"r = Attention({arguments})", valid, hostile, *more, opset=op_type_opset)


def labels(op_type, attributes=""):
    return row(f"g = LogSoftmax<axis = 1>(h) r = {op_type}{attributes}(g, i)", FOUR, INDICES)


def resize(attributes, arguments, valid, hostile, *more, **stored):
    return picture(f"r = Resize<{attributes}>({arguments})", valid, hostile, *more, **stored)


#: By operator and input; a word behind them tells rows of the same input apart.
ROWS: dict[str, Row] = {
    "AffineGrid size": row("g = Reshape(h, f) t = Gather(g, p) r = AffineGrid(t, i)", ints(1, 1, 3, 3), SIZES,
                           f=ints(16), p=np.arange(6).reshape(1, 2, 3)),
    "AffineGrid theta": row("t = Reshape(i, f) g = AffineGrid(t, n) a = Reshape(h, four) r = GridSample(a, g)",
                            reals(6), REALS, f=ints(1, 2, 3), n=ints(1, 1, 3, 3), four=ints(1, 1, 4, 4)),
    "ArgMax data": row("k = ArgMax<axis = 1>(i) r = GatherElements<axis = 1>(h, k)", reals(4, 4), REALS),
    "ArgMin data": row("k = ArgMin<axis = 1>(i) r = GatherElements<axis = 1>(h, k)", reals(4, 4), REALS),
    "Attention attn_mask bool": attention(23, "a, a, a, i", np.ones((4, 4), bool), BOOLS),
    "Attention attn_mask": attention(23, "a, a, a, i", reals(4, 4), REALS),
    "Attention nonpad_kv_seqlen": attention(24, "a, a, a, , , , i", ints(4), INDICES),
    "BitShift Y": row("m = Cast<to = 13>(i) k = BitShift<direction = \"LEFT\">(u, m) f = Cast<to = 1>(k) "
                      "r = Mul(h, f)", ints(1), INDICES, u=ints(1, dtype=np.uint64)),
    "Bernoulli input": row("b = Bernoulli(i) r = Mul(h, b)", reals(4, 4), REALS),
    "BlackmanWindow size": window("BlackmanWindow"),
    "Cast input": row("k = Cast<to = 7>(i) r = GatherElements<axis = 1>(h, k)", reals(4, 4), REALS),
    "CenterCropPad shape": row("r = CenterCropPad(h, i)", ints(2, 6), SIZES),
    "CenterCropPad shape of axes": row("r = CenterCropPad<axes = [1]>(h, i)", ints(2), SIZES),
    "Clip min": row("r = Clip(h, i)", one(0, np.float32), REALS),
    "Col2Im image_shape": row("a = Reshape(h, n) r = Col2Im(a, i, b)", ints(3, 3), (*SIZES, 2, 4), b=ints(2, 2),
                              n=ints(1, 4, 4)),
    "Col2Im block_shape": row("a = Reshape(h, n) r = Col2Im(a, m, i)", ints(2, 2), (*SIZES, 2, 4), m=ints(3, 3),
                              n=ints(1, 4, 4)),
    "Compress condition": row("r = Compress<axis = 0>(h, i)", np.array([True, False, True, True]), BOOLS,
                              np.ones(3), np.ones(5), np.ones(100_000), np.zeros(100_000), np.ones(0)),
    "Compress condition flat": row("r = Compress(h, i)", np.ones(16, bool), BOOLS, np.ones(17), np.ones(100_000),
                                   np.ones(0)),
    "ConstantOfShape input": row("c = ConstantOfShape(i) e = ReduceSum<keepdims = 0>(c) r = Mul(h, e)", ints(2, 2),
                                 SIZES),
    "CumProd axis": row("r = CumProd(h, i)", one(1), AXES, opset=26),
    "CumSum axis": row("r = CumSum(h, i)", one(1), AXES),
    "DeformConv offset": picture("r = DeformConv<kernel_shape = [2, 2]>(a, k, i)", reals(1, 8, 3, 3), REALS,
                                 k=reals(1, 1, 2, 2)),
    "DFT dft_length": row("a = Reshape(h, n) r = DFT(a, i)", one(4), (*SIZES, 2), n=ints(4, 4, 1)),
    "DFT axis": row("a = Reshape(h, n) r = DFT(a, , i)", one(1), AXES, n=ints(4, 4, 1)),
    "Dropout ratio": row("r = Dropout(h, i, t)", one(0.5, np.float32), REALS, t=one(True, bool)),
    "Dropout training_mode": row("r = Dropout(h, p, i)", one(False, bool), BOOLS, p=one(0.5, np.float32)),
    "DynamicQuantizeLinear x": row("q, s, z = DynamicQuantizeLinear(i) d = DequantizeLinear(q, s, z) r = Mul(h, d)",
                                   reals(4, 4), REALS),
    "DequantizeLinear x_scale": row("r0 = DequantizeLinear(q, i) r = Mul(h, r0)", one(1, np.float32), REALS,
                                    q=np.ones((4, 4), np.int8)),
    "Div B": row("q = Div(n, i) f = Cast<to = 1>(q) r = Mul(h, f)", ints(1, 1, 2, 3), INDICES,
                 n=ints(1, 2, 3, -(2**63))),
    "Expand shape": row("r = Expand(h, i)", ints(2, 4, 4), SIZES),
    "GRU sequence_lens": recurrent("GRU", 3, "forward"),
    "GRU sequence_lens reverse": recurrent("GRU", 3, "reverse"),
    "GRU sequence_lens bidirectional": recurrent("GRU", 3, "bidirectional"),
    "Gather indices": row("r = Gather(h, i)", FOUR, INDICES),
    "Gather indices int32": row("r = Gather<axis = 1>(h, i)", ints(0, 1, 2, 3, dtype=np.int32), INDICES),
    "GatherElements indices": row("r = GatherElements<axis = 1>(h, i)", GRID, INDICES),
    "GatherElements indices int32": row("r = GatherElements(h, i)", GRID.astype(np.int32), INDICES),
    "GatherND indices": row("r = GatherND(h, i)", ints([0, 1], [2, 3]), INDICES),
    "GatherND indices batch": row("r = GatherND<batch_dims = 1>(h, i)", ints([0], [1], [2], [3]), INDICES),
    "GridSample grid": picture("r = GridSample(a, i)", reals(1, 3, 3, 2), REALS),
    "GridSample grid cubic": picture('r = GridSample<mode = "cubic", padding_mode = "reflection">(a, i)',
                                     reals(1, 3, 3, 2), REALS),
    "GridSample grid nearest": picture('r = GridSample<mode = "nearest", padding_mode = "reflection">(a, i)',
                                       reals(1, 3, 3, 2), REALS),
    "GridSample grid border": picture('r = GridSample<padding_mode = "border", align_corners = 1>(a, i)',
                                      reals(1, 3, 3, 2), REALS),
    "HammingWindow size": window("HammingWindow"),
    "HannWindow size": window("HannWindow"),
    "If cond": row("r = If(i) <then_branch = g () => (float[4,4] b) { b = Neg(h) }, "
                   "else_branch = g () => (float[4,4] c) { c = Abs(h) }>", one(True, bool), BOOLS),
    "LSTM sequence_lens": recurrent("LSTM", 4, "forward"),
    "LSTM sequence_lens reverse": recurrent("LSTM", 4, "reverse"),
    "LSTM sequence_lens bidirectional": recurrent("LSTM", 4, "bidirectional"),
    "Loop M": loop("i, ", one(3), SIZES),
    "Loop M with a condition": loop("i, t", one(3), SIZES, t=one(True, bool)),
    "Loop M and scan": row("l, r = Loop(i, , h) <body = body (int64 k, bool c, float[4,4] a) => (bool d, "
                           "float[4,4] b, float[4,4] s) { d = Identity(c) b = Mul(a, z) s = Neg(b) }>", one(3), SIZES,
                           z=reals(1)),
    "Loop cond": loop("n, i", one(True, bool), BOOLS, n=one(3)),
    "MaxPool X": picture("b = Reshape(i, four) c = Mul(a, b) r, k = MaxPool<kernel_shape = [2, 2]>(c)", reals(4, 4),
                         REALS),
    "MaxPool X and its indices": picture("b = Reshape(i, four) c = Mul(a, b) m, k = MaxPool<kernel_shape = [2, 2], "
                                         "strides = [2, 2]>(c) r = MaxUnpool<kernel_shape = [2, 2], strides = [2, 2]>"
                                         "(m, k)", reals(4, 4), REALS),
    "MaxRoiPool rois": picture("r = MaxRoiPool<pooled_shape = [2, 2]>(a, i)",
                               np.array([[0, 0, 0, 2, 2], [0, 1, 1, 3, 3]], np.float32), REALS,
                               [[1, 0, 0, 2, 2]] * 2, [[-1, 0, 0, 2, 2]] * 2, [[np.nan, 0, 0, 2, 2]] * 2,
                               [[1e9, 0, 0, 2, 2]] * 2, [[0, 3, 3, 0, 0]] * 2, [[0, -1e9, -1e9, 1e9, 1e9]] * 2),
    "MaxUnpool I": picture("r = MaxUnpool<kernel_shape = [1, 1], strides = [1, 1]>(a, i)",
                           np.arange(16).reshape(1, 1, 4, 4), INDICES),
    "MaxUnpool output_shape": picture("r = MaxUnpool<kernel_shape = [1, 1], strides = [1, 1]>(a, p, i)",
                                      ints(1, 1, 4, 4), SIZES, p=np.arange(16).reshape(1, 1, 4, 4)),
    "MelWeightMatrix num_mel_bins": mel(0), "MelWeightMatrix dft_length": mel(1),
    "MelWeightMatrix sample_rate": mel(2), "MelWeightMatrix lower_edge_hertz": mel(3),
    "MelWeightMatrix upper_edge_hertz": mel(4),
    "Mod B": row("q = Mod(n, i) f = Cast<to = 1>(q) r = Mul(h, f)", ints(1, 1, 2, 3), INDICES,
                 n=ints(1, 2, 3, -(2**63))),
    "Multinomial input": row("m = Multinomial<sample_size = 3>(i) f = Cast<to = 1>(m) e = ReduceSum<keepdims = 0>(f) "
                             "r = Mul(h, e)", reals(4, 4), REALS),
    "NegativeLogLikelihoodLoss target": labels("NegativeLogLikelihoodLoss"),
    "NegativeLogLikelihoodLoss target ignored": labels("NegativeLogLikelihoodLoss", "<ignore_index = -1>"),
    "NonMaxSuppression boxes": nms(0, reals(1, 3, 4), REALS), "NonMaxSuppression scores": nms(1, reals(1, 1, 3), REALS),
    "NonMaxSuppression max_output_boxes_per_class": nms(2, ints(2), SIZES),
    "NonMaxSuppression iou_threshold": nms(3, reals(1) * 5, REALS),
    "NonMaxSuppression score_threshold": nms(4, reals(1), REALS),
    "OneHot indices": row("g = Gather(h, p) v = Gather<axis = 1>(h, p) r0 = OneHot(i, d, e) r = Mul(h, r0)", FOUR,
                          INDICES, p=ints(0, 1), d=one(4), e=reals(2)),
    "OneHot indices real": row("r0 = OneHot(i, d, e) r = Mul(h, r0)", reals(4), REALS, d=one(4, np.float32),
                               e=reals(2)),
    "OneHot depth": row("o = OneHot(k, i, e) s = ReduceSum<keepdims = 0>(o) r = Mul(h, s)", one(4), SIZES, k=FOUR,
                        e=reals(2)),
    "Pad pads constant": pad("constant"), "Pad pads reflect": pad("reflect"), "Pad pads edge": pad("edge"),
    "Pad pads wrap": pad("wrap"),
    "Pad pads reflect of opset 11": row('r = Pad<mode = "reflect">(h, i)', ints(1, 1, 1, 1), SIZES, [0, 0, 0, 10**7],
                                        opset=11),
    "Pad axes": row("r = Pad(h, p, , i)", ints(0, 1), AXES, p=ints(1, 1, 1, 1)),
    "Pow Y": row("q = Pow(n, i) f = Cast<to = 1>(q) r = Mul(h, f)", ints(1, 1, 2, 3), INDICES, n=ints(0, 2, 3, -4)),
    "QuantizeLinear y_scale": row("q = QuantizeLinear(x, i) f = Cast<to = 1>(q) r = Mul(h, f)", one(1, np.float32),
                                  REALS),
    "RNN sequence_lens": recurrent("RNN", 1, "forward"),
    "RNN sequence_lens reverse": recurrent("RNN", 1, "reverse"),
    "RNN sequence_lens bidirectional": recurrent("RNN", 1, "bidirectional"),
    "Range start": span(0, np.int64), "Range limit": span(1, np.int64), "Range delta": span(2, np.int64),
    "Range start real": span(0, np.float32), "Range limit real": span(1, np.float32),
    "Range delta real": span(2, np.float32),
    **{f"{op_type} axes": counts(op_type) for op_type in (
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
        "ReduceProd", "ReduceSum", "ReduceSumSquare")},
    "Reshape shape": row("r = Reshape(h, i)", ints(2, 8), SIZES),
    "Resize sizes": resize("mode = \"linear\"", "a, , , i", ints(1, 1, 6, 6), SIZES),
    "Resize sizes nearest": resize("mode = \"nearest\"", "a, , , i", ints(1, 1, 6, 6), SIZES),
    "Resize sizes cubic": resize("mode = \"cubic\"", "a, , , i", ints(1, 1, 6, 6), SIZES),
    "Resize sizes antialias": resize("mode = \"linear\", antialias = 1", "a, , , i", ints(1, 1, 2, 2), SIZES),
    "Resize sizes of axes": resize("mode = \"linear\", axes = [2, 3], keep_aspect_ratio_policy = \"not_larger\"",
                                   "a, , , i", ints(6, 6), SIZES),
    "Resize scales": resize("mode = \"linear\"", "a, , i", np.array([1, 1, 2, 2], np.float32), REALS),
    "Resize scales nearest": resize("mode = \"nearest\"", "a, , i", np.array([1, 1, 2, 2], np.float32), REALS),
    "Resize scales cubic": resize("mode = \"cubic\"", "a, , i", np.array([1, 1, 2, 2], np.float32), REALS),
    "Resize scales antialias": resize("mode = \"cubic\", antialias = 1", "a, , i",
                                      np.array([1, 1, 0.5, 0.5], np.float32), REALS),
    "Resize roi": resize("mode = \"linear\", coordinate_transformation_mode = \"tf_crop_and_resize\"", "a, i, , n",
                         np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32), REALS, n=ints(1, 1, 6, 6)),
    "Resize roi nearest": resize("mode = \"nearest\", coordinate_transformation_mode = \"tf_crop_and_resize\"",
                                 "a, i, , n", np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32), REALS,
                                 n=ints(1, 1, 6, 6)),
    "Resize roi cubic": resize("mode = \"cubic\", coordinate_transformation_mode = \"tf_crop_and_resize\"",
                               "a, i, , n", np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32), REALS,
                               n=ints(1, 1, 6, 6)),
    "ReverseSequence sequence_lens": row("r = ReverseSequence<batch_axis = 0, time_axis = 1>(h, i)", ints(4, 3, 2, 1),
                                         (*INDICES, 0)),
    "RoiAlign batch_indices": picture("r = RoiAlign<output_height = 2, output_width = 2>(a, b, i)", ints(0, 0, 0, 0),
                                      INDICES, b=REGIONS),
    "RoiAlign batch_indices max": picture('r = RoiAlign<mode = "max", output_height = 2>(a, b, i)', ints(0, 0, 0, 0),
                                          INDICES, b=REGIONS),
    "RoiAlign batch_indices of opset 10": picture(
        "r = RoiAlign<output_height = 2, output_width = 2>(a, b, i)", ints(0, 0, 0, 0), INDICES, opset=10, b=REGIONS),
    "RoiAlign rois": picture("r = RoiAlign<output_height = 2, output_width = 2>(a, i, b)",
                             REGIONS, REALS, *FAR, b=ints(0, 0, 0, 0)),
    "RoiAlign rois max": picture('r = RoiAlign<mode = "max", output_height = 2, output_width = 2>(a, i, b)',
                                 REGIONS, REALS, *FAR, b=ints(0, 0, 0, 0)),
    "RotaryEmbedding position_ids": picture("r = RotaryEmbedding(a, c, d, i)", ints([0, 1, 2, 3]), INDICES, opset=23,
                                            c=reals(4, 2), d=reals(4, 2)),
    "STFT frame_step": row("s = Reshape(h, n) r = STFT(s, i, , l)", one(2), SIZES, n=ints(1, 16, 1), l=one(4)),
    "STFT frame_length": row("s = Reshape(h, n) r = STFT(s, l, , i)", one(4), SIZES, n=ints(1, 16, 1), l=one(2)),
    "Scatter indices": row("r = Scatter<axis = 1>(h, i, h)", GRID, INDICES, opset=10),
    **{f"ScatterElements indices {r}": scatter(r) for r in ("none", "add", "mul", "max")},
    **{f"ScatterND indices {r}": scatter_nd(r) for r in ("none", "add", "mul", "max")},
    "SequenceAt position": row(f"{SEQUENCE} r = SequenceAt(s, i)", one(0), INDICES),
    "SequenceErase position": positions("SequenceErase", "s, i"),
    "SequenceInsert position": positions("SequenceInsert", "s, h, i"),
    "Slice starts": row("r = Slice(h, i, e, x, t)".replace(" x,", " q,"), ints(0, 1), INDICES, e=ints(4, 4),
                        q=ints(0, 1), t=ints(1, 1)),
    "Slice ends": row("r = Slice(h, e, i)", ints(3, 4), INDICES, e=ints(0, 1)),
    "Slice axes": row("r = Slice(h, b, e, i)", ints(0, 1), AXES, b=ints(0, 1), e=ints(3, 4)),
    "Slice steps": row("r = Slice(h, b, e, q, i)", ints(1, 2), (*INDICES, 0), b=ints(0, 1), e=ints(3, 4),
                       q=ints(0, 1)),
    "SoftmaxCrossEntropyLoss labels": row("r = SoftmaxCrossEntropyLoss(h, i)", FOUR, INDICES),
    "SoftmaxCrossEntropyLoss labels int32": row('r = SoftmaxCrossEntropyLoss<ignore_index = -1>(h, i)',
                                                FOUR.astype(np.int32), INDICES),
    "Split split": row("r, q = Split(h, i)", ints(2, 2), SIZES, [5, -1], [2**62, 2**62], [2**63 - 1, -(2**63) + 5]),
    "SplitToSequence split": row("s = SplitToSequence(h, i) r = ConcatFromSequence<axis = 0>(s)", ints(2, 2), SIZES,
                                 [5, -1], [2**63 - 1, -(2**63) + 5]),
    "SplitToSequence split scalar": row("s = SplitToSequence(h, i) r = ConcatFromSequence<axis = 0>(s)", one(2), SIZES),
    "Squeeze axes": row("a = Unsqueeze(h, q) r = Squeeze(a, i)", ints(1), AXES, q=ints(1)),
    "TensorScatter write_indices": picture("u = Slice(a, b, e, q) r = TensorScatter(a, u, i)", ints(2), INDICES,
                                           opset=24, b=ints(0), e=ints(2), q=ints(2)),
    "TensorScatter write_indices circular": picture('u = Slice(a, b, e, q) r = TensorScatter<mode = "circular">'
                                                    "(a, u, i)", ints(2), INDICES, opset=24, b=ints(0), e=ints(2),
                                                    q=ints(2)),
    "TfIdfVectorizer X": row('t = TfIdfVectorizer<mode = "TF", min_gram_length = 1, max_gram_length = 1, '
                             "max_skip_count = 0, ngram_counts = [0], ngram_indexes = [0, 1], pool_int64s = [2, 3]>(i) "
                             "e = ReduceSum<keepdims = 0>(t) r = Mul(h, e)", FOUR, INDICES),
    "Tile repeats": row("r = Tile(h, i)", ints(2, 1), SIZES),
    "Tile repeats of opset 9": row("r = Tile(h, i)", ints(2, 1), SIZES, opset=9),
    "TopK K": row("r, k = TopK(h, i)", ints(2), SIZES),
    "TopK X": row("a = Mul(h, i) r, k = TopK(a, n)", reals(4, 4), REALS, n=ints(2)),
    "TopK X of many": row("a = Tile(i, t) r, k = TopK(a, n)", reals(4, 4), REALS, n=ints(600), t=ints(1, 300)),
    "Trilu k": row("r = Trilu(h, i)", one(1), INDICES),
    "Trilu k lower": row("r = Trilu<upper = 0>(h, i)", one(1), INDICES),
    "Unique X": row("u, k, v, n = Unique(i) f = Cast<to = 1>(v) e = ReduceSum<keepdims = 0>(f) r = Mul(h, e)",
                    reals(16), REALS),
    "Unsqueeze axes": row("r = Unsqueeze(h, i)", ints(1), AXES),
    "Upsample scales": picture("r = Upsample(a, i)", np.array([1, 1, 2, 2], np.float32), REALS, opset=9),
    "Where condition": row("r = Where(i, h, x)", np.ones((4, 4), bool), BOOLS),
}


def foreign(call, valid, hostile, *more, domain="com.microsoft", outputs="r0", **stored):
    """A row of an operator that onnxruntime alone has; it gets nothing that depends on the weight."""
    return row(f"{outputs} = {domain}.{call} f = Cast<to = 1>(r0) e = ReduceSum<keepdims = 0>(f) r = Mul(h, e)", valid,
               hostile, *more, **stored)


def embedding(position, valid, hostile):
    names = ["ids", "parts", "E", "E", "E", "g", "g", "", "places"]
    names[position] = "i"
    stored = {"ids": ints([0, 1], [2, 3], dtype=np.int32), "parts": ints([0, 1], [0, 1], dtype=np.int32),
              "E": reals(4, 8), "g": reals(8), "places": ints([0, 1], [0, 1], dtype=np.int32)}
    return foreign(f"EmbedLayerNormalization({', '.join(names)})", valid, hostile, outputs="r0, m", **stored)


def without(name):
    """The inputs of CropAndResize but one."""
    stored = {"a0": reals(1, 1, 4, 4), "b": reals(3, 4), "k": ints(0, 0, 0, dtype=np.int32),
              "s": ints(2, 2, dtype=np.int32)}
    del stored[name]
    return stored


PAIRS = ints([0, 1], [2, 3], dtype=np.int32)
ROWS |= {
    "ArrayFeatureExtractor Y": foreign("ArrayFeatureExtractor(a0, i)", ints(0, 1), INDICES, domain="ai.onnx.ml",
                                       a0=reals(4, 4)),
    "LabelEncoder X": foreign("LabelEncoder<keys_int64s = [0, 1], values_floats = [1.0, 2.0]>(i)", ints(0, 1), INDICES,
                              domain="ai.onnx.ml"),
    "OneHotEncoder X": foreign("OneHotEncoder<cats_int64s = [0, 1]>(i)", ints(0, 1), INDICES, domain="ai.onnx.ml"),
    "com.microsoft.Attention mask_index": foreign(
        "Attention<num_heads = 1>(q, W, b, i)", ints(4, 3, dtype=np.int32), INDICES, q=reals(2, 4, 16), W=reals(16, 48),
        b=reals(48)),
    "com.microsoft.Attention mask_index of starts": foreign(
        "Attention<num_heads = 1>(q, W, b, i)", ints(4, 3, 0, 1, dtype=np.int32), INDICES, q=reals(2, 4, 16),
        W=reals(16, 48), b=reals(48)),
    "com.microsoft.CropAndResize rois": foreign("CropAndResize(a0, i, k, s)", reals(3, 4), REALS, **without("b")),
    "com.microsoft.CropAndResize batch_indices": foreign("CropAndResize(a0, b, i, s)", ints(0, 0, 0, dtype=np.int32),
                                                         INDICES, **without("k")),
    "com.microsoft.CropAndResize crop_size": foreign("CropAndResize(a0, b, k, i)", ints(2, 2, dtype=np.int32), SIZES,
                                                     **without("s")),
    "com.microsoft.EmbedLayerNormalization input_ids": embedding(0, PAIRS, INDICES),
    "com.microsoft.EmbedLayerNormalization segment_ids": embedding(1, PAIRS, INDICES),
    "com.microsoft.EmbedLayerNormalization mask": embedding(7, PAIRS, INDICES),
    "com.microsoft.EmbedLayerNormalization position_ids": embedding(8, PAIRS, INDICES),
    "com.microsoft.ExpandDims axis": foreign("ExpandDims(a0, i)", one(1, np.int32), (*AXES, -4, 3, 4), a0=reals(4, 4)),
    "com.microsoft.GatherND indices": foreign("GatherND(a0, i)", ints([0, 1]), INDICES, a0=reals(4, 4)),
    "com.microsoft.GroupQueryAttention seqlens_k": foreign(
        "GroupQueryAttention<num_heads = 1, kv_num_heads = 1>(q, q, q, c, c, i, t)", ints(2, dtype=np.int32), INDICES,
        outputs="r0, p0, p1", q=reals(1, 1, 16), c=reals(1, 1, 4, 16), t=one(3, np.int32)),
    "com.microsoft.GroupQueryAttention seqlens_k of a prompt": foreign(
        "GroupQueryAttention<num_heads = 1, kv_num_heads = 1>(q, q, q, , , i, t)", ints(3, dtype=np.int32), INDICES,
        outputs="r0, p0, p1", q=reals(1, 4, 16), t=one(4, np.int32)),
    "com.microsoft.GroupQueryAttention total_sequence_length": foreign(
        "GroupQueryAttention<num_heads = 1, kv_num_heads = 1>(q, q, q, , , k, i)", one(4, np.int32), (*INDICES, 0),
        outputs="r0, p0, p1", q=reals(1, 4, 16), k=ints(3, dtype=np.int32)),
    "com.microsoft.MatMulNBits g_idx": foreign(
        "MatMulNBits<K = 32, N = 4, bits = 4, block_size = 32>(a0, B, s, , i)", np.zeros(32, np.int32), INDICES,
        a0=reals(2, 32), B=np.ones((4, 1, 16), np.uint8), s=reals(4)),
    "com.microsoft.MaxpoolWithMask M": foreign("MaxpoolWithMask<kernel_shape = [2, 2]>(a0, i)",
                                               np.ones((1, 1, 4, 4), np.int32), INDICES, a0=reals(1, 1, 4, 4)),
    "com.microsoft.MultiHeadAttention key_padding_mask": foreign(
        "MultiHeadAttention<num_heads = 1>(q, q, q, , i)", ints(4, 3, dtype=np.int32), INDICES, q=reals(2, 4, 16)),
    "com.microsoft.NGramRepeatBlock input_ids": foreign("NGramRepeatBlock<ngram_size = 2>(i, s)", ints([0, 1, 0]),
                                                        INDICES, s=reals(1, 4)),
    "com.microsoft.Pad pads": foreign('Pad<mode = "reflect">(a0, i)', ints(1, 1, 1, 1), SIZES, [0, 0, 0, 10**7],
                                      a0=reals(4, 4)),
    "com.microsoft.Range limit": foreign("Range(z, i, d)", one(4, np.int32), INDICES, z=one(0, np.int32),
                                         d=one(1, np.int32)),
    "com.microsoft.Range delta": foreign("Range(z, l, i)", one(1, np.int32), (*INDICES, 0), z=one(0, np.int32),
                                         l=one(4, np.int32)),
    "com.microsoft.RotaryEmbedding position_ids": foreign("RotaryEmbedding<num_heads = 1>(a0, i, c, c)",
                                                          ints([0, 1, 2, 3]), INDICES, a0=reals(1, 4, 16),
                                                          c=reals(4, 8)),
    "com.microsoft.RotaryEmbedding position_ids of the first": foreign(
        "RotaryEmbedding<num_heads = 1>(a0, i, c, c)", ints(0), INDICES, a0=reals(1, 4, 16), c=reals(4, 8)),
    "com.microsoft.Trilu k": foreign("Trilu(a0, i)", one(1), INDICES, a0=reals(4, 4)),
    "com.microsoft.WordConvEmbedding Sequence": foreign(
        "WordConvEmbedding(i, W, b, E)", ints([1, 2, 3], [1, 2, 0], dtype=np.int32), INDICES, W=reals(4, 1, 2, 3),
        b=reals(4), E=reals(5, 3)),
}

#: Inputs of whole numbers or truth values that no operator reads as an index, a length or a size, by reason.
HARMLESS = {
    **dict.fromkeys(("And", "BitShift X", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Not", "Or", "Xor"),
                    "computed element by element"),
    **dict.fromkeys(("ConvInteger", "MatMulInteger", "QLinearConv"), "multiplied and added up"),
    "CategoryMapper": "looked up, as by LabelEncoder",
    "ImageDecoder": "an operator that neither runtime has",
}


def model(row: Row, *, computed: bool, weight: str = "before") -> onnx.ModelProto:
    """The model of a row: `i` is an input, or the first row of one.

    The weight is before the operator, or, where that has no gradient, behind it.
    """
    kind = helper.np_dtype_to_tensor_dtype(row.valid.dtype)
    first, last = "h = Mul(x, w)", "y = Add(h, total)"
    if weight == "behind":
        first, last = "", "z0 = Add(x, total) y = Mul(z0, w)"
    pick = "i = Gather(i_rows, first)" if computed else ""
    text = (f'<ir_version: 8, opset_import: ["" : {row.opset}, "com.microsoft" : 1, '
            f'"ai.onnx.ml" : 3]> g (float[4,4] x) => (float[4,4] y) '
            f"{{ {first} {pick} {row.body} r_sum = ReduceSum<keepdims = 0>(r) total = Reshape(r_sum, scalar) {last} }}")
    proto = onnx.parser.parse_model(text)
    shape = ["N", *row.shape] if computed else row.shape
    proto.graph.input.append(helper.make_tensor_value_info("i_rows" if computed else "i", kind, shape))
    used = set(itertools.chain.from_iterable(node_inputs(proto.graph)))
    stored = {"w": np.ones(1, np.float32), "first": one(0), "scalar": np.zeros(0, np.int64),
              "h": reals(4, 4), **row.stored}
    if weight == "before":
        del stored["h"]
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in stored.items() if n in used)
    return proto


def node_inputs(graph):
    for node in graph.node:
        yield node.input
        for a in node.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                yield from node_inputs(a.g)


def feeds(value: np.ndarray, *, computed: bool) -> dict[str, np.ndarray]:
    """Arrays of the inputs of `model` with this value for `i`."""
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    return {"x": x, "i_rows": np.repeat(value[None], 4, axis=0)} if computed else {"x": x, "i": value}
