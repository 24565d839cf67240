"""Equivalent mutants: changes of rules that no test can notice, and the reasons."""

# By reason: the function, then what is changed in it.
_REASONS: dict[str, dict[str, list[str]]] = {
    "says a shape to the nodes that follow; no number depends on it": {
        "control._sized": ["None not in d.shape -> None in d.shape"],
        "control._differentiate_body": [
            "c.before.shape is None or None in c.before.shape -> c.before.shape is None and None in c.before.shape",
        ],
        "microsoft.split_at": [
            "x.shape or [None] * x.rank -> x.shape and [None] * x.rank",
            "axis + 1 -> axis + 2",
        ],
        "regions.each_bin": ["[None] * 4 -> [None] * 5"],
        "sampling.sample": ["3 + r -> 4 + r"],
        "window.count_seen": [
            "ones.stated([1, 1, *(x.shape or ())[2:]]) -> ones.stated([2, 1, *(x.shape or ())[2:]])",
            "ones.stated([1, 1, *(x.shape or ())[2:]]) -> ones.stated([1, 2, *(x.shape or ())[2:]])",
        ],
    },
    "is never reached: a scalar is not cut into parts": {"microsoft.split_at": ["[None] * x.rank -> [None] / x.rank"]},
    "computes at run time what is known before, or computes what is known to be nothing": {
        "control._surely_runs": [
            "trips is not None -> trips is None",
            "trips.array.item() > 0 -> trips.array.item() > 1",
        ],
        "indexing.find_single_slice": ["x.shape[axis] if x.shape else None -> x.shape[axis] if not x.shape else None"],
        "reduction.count_reduced": ["len(sizes) == axes.array.size > 0 -> len(sizes) == axes.array.size > 1"],
        "resize.is_resized": ["v.shape is None -> v.shape is not None", "n is None -> n is not None"],
        "shape.Slice": ["steps.array is not None -> steps.array is None"],
        "shape.slice_margins": [
            "starts.array is not None -> starts.array is None",
            "axes.array is not None -> axes.array is None",
        ],
        "shape.expand_pads": [
            "x.shape is not None -> x.shape is None",
            "axes.array is not None -> axes.array is None",
        ],
        "window.GlobalAveragePool": ["range(2, x.rank) -> range(x.rank, 2)"],
        "window.trusted_sizes": ["i + b -> i - b"],
        "window.read_transposed_window": ["n or not shape -> n and (not shape)"],
    },
    "moves elements in another way to the same places": {
        "sliding.extract_views": [
            "math.prod(window.kernel) > 1 -> math.prod(window.kernel) <= 1",
            "math.prod(window.kernel) > 1 -> math.prod(window.kernel) > 2",
        ],
    },
    "is asked for its dtype alone": {
        "window.CausalConvWithState": ["constant(0, np.float32) -> constant(1, np.float32)"],
    },
    "carries more through the loop than is needed, whose cotangents are 0": {
        "control._needed": ["m if reached >> i & 1 else 0 -> m if reached >> i & 1 else 1"],
        "control._make_dependencies": [
            "v.node is not None and v.is_float -> v.node is not None or v.is_float",
            "nodes.get(v.node, 0) -> nodes.get(v.node, 1)",
            "nodes.get(v.node, 0) if v.node is not None and v.is_float else 0 -> "
            "nodes.get(v.node, 0) if v.node is not None and v.is_float else 1",
            "0 -> 1",
        ],
    },
    "looks at more than there is, and leaves it out or crops it": {
        "regions.MaxRoiPool": ["behind - first -> behind + first"],
        "regions.count_up_to": [
            "op.Max(op.ReduceMax(op.Concat(op.Reshape(number, [-1]), [1.0], axis=0), keepdims=0), 1) -> "
            "op.Max(op.ReduceMax(op.Concat(op.Reshape(number, [-1]), [1.0], axis=0), keepdims=0), 2)",
            "op.Concat(op.Reshape(number, [-1]), [1.0], axis=0) -> op.Concat(op.Reshape(number, [-1]), [1.01], axis=0)",
        ],
        "resize.shared_ratio_matrix": ["constant([1]) -> constant([2])"],
        "window.count_seen": ["p + s - 1 -> p + s + 1"],
        "window.read_transposed_window": ["min(0, b) -> min(1, b)"],
    },
    "takes arguments of a sum, a product, a maximum or a comparison the other way round": {
        "control._check_shape": ["zip(sizes, c.first.shape, strict=True) -> zip(c.first.shape, sizes, strict=True)"],
        "regions.count_up_to": [
            "op.Concat(op.Reshape(number, [-1]), [1.0], axis=0) -> op.Concat([1.0], op.Reshape(number, [-1]), axis=0)"
        ],
        "sliding.fits_col2im": [
            "zip(n, window.pads[:r], window.pads[r:], strict=True) -> "
            "zip(window.pads[:r], n, window.pads[r:], strict=True)"
        ],
        "sliding.extract_views": [
            "zip(place, window.dilations, strict=True) -> zip(window.dilations, place, strict=True)"
        ],
        "window.count_seen": [
            "zip(pads[r:], window.strides, strict=True) -> zip(window.strides, pads[r:], strict=True)"
        ],
        "window.read_transposed_window": [
            "zip(extra, window.extent, window.strides, strict=True) -> "
            "zip(window.extent, extra, window.strides, strict=True)",
            "min(0, b) -> min(b, 0)",
        ],
    },
    "reads behind the last axis or the last element, where nothing is": {
        "microsoft.Attention": ["slice_shape(y, 2, 3) -> slice_shape(y, 2, 4)"],
        "microsoft.MultiHeadAttention": [
            "slice_shape(q, 2, 3) -> slice_shape(q, 2, 4)",
            "slice_shape(bias, 0, 1) -> slice_shape(bias, 0, 2)",
        ],
        "microsoft.attend": ["slice_shape(q, 3, 4) -> slice_shape(q, 3, 5)"],
        "sampling.AffineGrid": ["r + 2 -> r + 3"],
        "sampling.DeformConv": ["r + 2 -> r + 3", "r + 2 -> r + 3 (2)", "r + 2 -> r + 3 (3)", "r + 2 -> r + 3 (4)"],
        "shape.reorder_channels": ["slice_shape(x, 2, 4) -> slice_shape(x, 2, 5)"],
        "time.flatten_steps": ["slice_shape(v, 2, 3) -> slice_shape(v, 2, 4)"],
        "time.split_steps": ["slice_shape(v, 1, 2) -> slice_shape(v, 1, 3)"],
    },
    "counts from the end, which is the same place, or from any negative number": {
        "regions.RoiAlign": ["axis + 2 -> axis - 2"],
        "resize.resize_matrix": ["i + n_axes -> i - n_axes"],
        "shape.expand_pads": [
            "pads.array.reshape(2, -1) -> pads.array.reshape(2, -2)",
            "all_axes.reshape(-1) -> all_axes.reshape(-2)",
            "along + rank -> along - rank",
            "along + rank -> along - rank (2)",
        ],
    },
    "gives axes of one, which broadcast or are summed by the walk": {
        "losses.nll_vjp": [
            "op.ReduceSum(w, keepdims=0) -> op.ReduceSum(w, keepdims=1)",
            "op.ReduceSum(w * x, keepdims=0) -> op.ReduceSum(w * x, keepdims=1)",
        ],
        "resize.shared_ratio_matrix": ["axes[i] + 1 -> axes[i] - 1"],
        "shape.Pad": [
            "op.ReduceSum(dx, keepdims=0) -> op.ReduceSum(dx, keepdims=1)",
            "op.ReduceSum(dy, keepdims=0) -> op.ReduceSum(dy, keepdims=1)",
        ],
    },
    "stands for a number that is 0 and divides 0 alone": {
        "losses.nll_vjp": ["n + cast(op.Equal(n, 0), n) -> n - cast(op.Equal(n, 0), n)"],
        "normalize.LpNormalization": ["n + cast(op.Equal(n, 0), n) -> n - cast(op.Equal(n, 0), n)"],
        "reduction.ReduceL2": ["y + cast(op.Equal(y, 0), y) -> y - cast(op.Equal(y, 0), y)"],
        "reduction.factors_vjp": ["x + z -> x - z"],
        "window.norm_power": ["y + cast(op.Equal(y, 0), y) -> y - cast(op.Equal(y, 0), y)"],
    },
    "is divided by a stride of 1, which leaves a rest of 0 whatever it is": {
        "window.pad_input": ["[0] * len(window.kernel) -> [1] * len(window.kernel)"]
    },
    "is the power of one, which is what is given instead": {
        "elementwise.lower_power": ["less.ndim == 0 -> less.ndim != 0", "less.ndim == 0 -> less.ndim == 1"]
    },
    "is the exponential of a number so small that it is 0": {
        "microsoft.attend": [
            "filler or -10000.0 -> filler or -10100.0",
            "np.finfo(np.float16 if q.dtype == np.float16 else np.float32).min / 2 -> "
            "np.finfo(np.float16 if q.dtype == np.float16 else np.float32).min / 3",
        ],
    },
    "begins a slice behind n - m, which only one of nothing does": {
        "shape.slice_margins": ["n - m -> n + m", "n - m -> n + m (3)"]
    },
    "asks one of two that are always the same": {
        "control._unless_none": ["node.bodies[0].inputs[0] -> node.bodies[0].inputs[1]"],
        "linear.Det": ["identity_matrix(x, -1) -> identity_matrix(x, -2)"],
        "microsoft.MultiHeadAttention": ["key.rank == 5 -> key.rank == 6"],
        "microsoft.attend": ["2: -> 3:"],
        "normalize.center": ["ys[1] -> ys[2]"],
        "sampling.DeformConv": ["taps[0] -> taps[1]"],
        "window.trusted_sizes": ["not n or not m -> not n and (not m)"],
    },
    "is not read in this mode, or for these axes": {
        "sampling.DeformConv": [
            "pad_taps(interpolate(op.Flatten(u, axis=1), 'linear'), inside, 'zeros', 0) -> "
            "pad_taps(interpolate(op.Flatten(u, axis=1), 'linear'), inside, 'zeros', 1)"
        ],
        "window.GlobalMaxPool": [
            "share_among_ties(x, constant(list(range(2, x.rank))), y, dy, 1, 0) -> "
            "share_among_ties(x, constant(list(range(2, x.rank))), y, dy, 1, 1)"
        ],
    },
    "copies a size that is 0 from the same place": {
        "sampling.DeformConv": [
            "op.Reshape(x, concat_sizes(many, channels, slice_shape(x, 2, r + 2)), allowzero=1) -> "
            "op.Reshape(x, concat_sizes(many, channels, slice_shape(x, 2, r + 2)), allowzero=0)",
            "op.Reshape(offset, concat_sizes(many, kernel, constant([r]), spread), allowzero=1) -> "
            "op.Reshape(offset, concat_sizes(many, kernel, constant([r]), spread), allowzero=0)",
            "op.Reshape(mask, op.Shape(taps[0].places, end=2), allowzero=1) -> "
            "op.Reshape(mask, op.Shape(taps[0].places, end=2), allowzero=0)",
            "op.Reshape(seen, groups, allowzero=1) -> op.Reshape(seen, groups, allowzero=0)",
        ],
        "sampling.gather_taps": [
            "op.Reshape(x, concat_sizes(slice_shape(x, 0, 2), op.ReduceProd(slice_shape(x, 2, x.rank))), "
            "allowzero=1) -> "
            "op.Reshape(x, concat_sizes(slice_shape(x, 0, 2), op.ReduceProd(slice_shape(x, 2, x.rank))), "
            "allowzero=0)",
            "op.Reshape(elements, op.Concat(slice_shape(x, 0, 2), op.Shape(place, start=1), axis=0), allowzero=1) -> "
            "op.Reshape(elements, op.Concat(slice_shape(x, 0, 2), op.Shape(place, start=1), axis=0), allowzero=0)",
        ],
    },
    "changes what has one element, or two taps, or none at all": {
        "regions.average_bins": ["op.Max(op.ReduceSum(exist, [2]), 1) -> op.Max(op.ReduceSum(exist, [2]), 2)"],
        "regions.max_bins": ["op.Where(some, most, 0.0) -> op.Where(some, most, 1.0)"],
        "sampling.pad_taps": ["op.Max(2 * span, 1) -> op.Max(2 * span, 2)"],
    },
    "crops along an axis whose size stays, which onnxruntime does not do": {
        "resize.is_resized": [
            "node.attribute('coordinate_transformation_mode') == 'tf_crop_and_resize' or keeps_ratio(node) -> "
            "node.attribute('coordinate_transformation_mode') == 'tf_crop_and_resize' and keeps_ratio(node)"
        ],
    },
}

#: (function, change): why no test can notice it.
EQUIVALENT = {(f, change): why for why, table in _REASONS.items() for f, some in table.items() for change in some}
