"""Gradients of Resize."""

from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from table import OLD, assert_as_torch, real, rows

from ortpartial.autodiff.grad import grad
from ortpartial.exceptions import NoGradientError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.testing import check_gradient, evaluate

COORDINATES = ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric"]


def resized(*, scales=None, sizes=None, roi=None, **attributes):
    """Resize with numbers for what is not differentiated."""
    scales, roi = (None if v is None else np.array(v, np.float32) for v in (scales, roi))
    return lambda x: op.Resize(x, None if roi is None else op.CastLike(roi, x), scales, sizes, **attributes)


MODES = [
    pytest.param({"mode": mode, "coordinate_transformation_mode": coordinates, **target},
                 id=f"{mode}-{coordinates}-{next(iter(target))}")
    for mode, coordinates, target in product(
        ["nearest", "linear", "cubic"], COORDINATES, [{"scales": [1, 1, 2, 1.5]}, {"sizes": [1, 2, 5, 3]}])
]


@pytest.mark.parametrize("settings", MODES)
def test_modes(settings):
    check_gradient(resized(**settings), [real(1, 2, 4, 4)], directions=1, order=1)


CASES = rows(
    ("smaller", {"scales": [1, 1, 0.6, 0.5], "mode": "linear"}, (1, 2, 5, 6)),
    ("smaller, nearest", {"scales": [1, 1, 0.6, 0.5]}, (1, 2, 5, 6)),
    ("smaller, antialias", {"scales": [1, 1, 0.6, 0.5], "mode": "linear", "antialias": 1}, (1, 1, 5, 6)),
    ("cubic, antialias", {"scales": [1, 1, 0.6, 0.5], "mode": "cubic", "antialias": 1}, (1, 1, 5, 6)),
    ("cubic, coefficient", {"scales": [1, 1, 2, 1], "mode": "cubic", "cubic_coeff_a": -0.5}, (1, 1, 4, 4)),
    ("cubic, exclude outside", {"scales": [1, 1, 2, 1], "mode": "cubic", "exclude_outside": 1}, (1, 1, 4, 4)),
    ("axes", {"sizes": [5, 3], "axes": [2, 3], "mode": "linear"}, (1, 2, 4, 2)),
    ("axes, other order", {"sizes": [5, 3], "axes": [3, 2], "mode": "linear"}, (1, 2, 4, 2)),
    ("channels last", {"scales": [1, 2, 1.5, 1], "mode": "linear"}, (1, 3, 4, 2)),
    ("batch as well", {"scales": [2, 1, 2, 1]}, (2, 2, 3, 2)),
    ("one axis", {"scales": [1, 1, 2]}, (2, 2, 4)),
    ("matrix", {"scales": [2, 2], "mode": "linear"}, (3, 4)),
    ("vector", {"scales": [2]}, (4,)),
    ("three axes", {"scales": [1, 1, 2, 1.5, 2]}, (1, 1, 2, 4, 2)),
    ("three axes, linear", {"scales": [1, 1, 2, 1.5, 2], "mode": "linear"}, (1, 1, 2, 4, 2)),
    ("one element", {"sizes": [1, 1, 3, 1], "mode": "linear"}, (1, 1, 1, 3)),
    ("one element, align corners",
     {"sizes": [1, 1, 1, 4], "mode": "linear", "coordinate_transformation_mode": "align_corners"}, (1, 1, 3, 2)),
    *((f"nearest, {mode}", {"scales": [1, 1, 1.6, 0.7], "nearest_mode": mode}, (1, 1, 4, 5))
      for mode in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")),
)


@pytest.mark.parametrize(("settings", "shape"), CASES)
def test_resize(settings, shape):
    check_gradient(resized(**settings), [real(*shape)], directions=1)


@pytest.mark.parametrize(("settings", "shape"), [
    *(pytest.param(*p.values, (1, 2, 4, 4), id=p.id) for p in MODES),
    *(pytest.param(*p.values, id=p.id) for p in CASES),
    pytest.param({"sizes": [1, 1, 5, 3], "roi": [0, 0, 0.2, 0.15, 1, 1, 0.9, 0.8], "mode": "linear",
                  "coordinate_transformation_mode": "tf_crop_and_resize"}, (1, 1, 5, 6), id="a crop"),
])
def test_what_the_runtime_computes_is_what_is_differentiated(settings, shape):
    # Runtimes and onnx's reference evaluator round coordinates in ways of their own, so the map itself is asked.
    x = variable("x", "float32", shape)
    y = resized(**settings)(x)
    a = real(*shape).astype(np.float32)
    dy = real(*y.shape, seed=1).astype(np.float32)
    found = evaluate(build([x], {"y": y, "dx": grad(y, [x], [constant(dy)])[0]}), {"x": a})
    np.testing.assert_allclose((found["dx"] * a).sum(), (dy * found["y"]).sum(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("roi", [[0, 0, 0.2, 0.15, 1, 1, 0.9, 0.8], [0, 0, -0.3, 0.42, 1, 1, 1.2, 0.6]], ids=str)
def test_crop_and_resize(roi, mode):
    f = resized(sizes=[1, 1, 4, 3], roi=roi, mode=mode, coordinate_transformation_mode="tf_crop_and_resize",
                extrapolation_value=3.0)
    check_gradient(f, [real(1, 1, 5, 6)], directions=1, order=1)


def test_sizes_known_at_run_time():
    def f(x, sizes):
        return op.Resize(x, None, None, sizes, mode="linear")

    # The specification wants the number of sizes to be known.
    check_gradient(f, [real(1, 2, 3, 4), np.array([1, 2, 5, 6])], directions=1, symbolic=False)


def test_scales_known_at_run_time():
    args = [real(1, 2, 3, 4), np.array([1, 1, 2, 1.5])]
    check_gradient(lambda x, s: op.Resize(x, None, op.Cast(s, to=1)), args, wrt=[0], directions=1, order=1)


@pytest.mark.parametrize(("i", "name"), [(0, "roi"), (1, "scales")])
def test_what_moves_places_is_refused(i, name):
    """The nearest element remains the same one."""
    x = variable("x", "float32", [4])
    moving = [variable("roi", "float32", [2]), variable("scales", "float32", [1])]
    for mode, crops in (("nearest", "tf_crop_and_resize"), ("linear", "tf_crop_and_resize"), ("linear", "half_pixel")):
        y = op.Resize(x, *moving, mode=mode, coordinate_transformation_mode=crops)
        if mode == "nearest" or (name == "roi" and crops == "half_pixel"):
            (d,) = evaluate(build([x, *moving], grad(y, [moving[i]])),
                            {"x": real(4).astype(np.float32), "roi": np.array([0, 1], np.float32),
                             "scales": np.array([2], np.float32)}).values()
            assert not d.any()
            continue
        with pytest.raises(NoGradientError, match=f"Resize> has no gradient by its {name}; leave out of weights_to_tr"):
            grad(y, [moving[i]])


def torch_resized(**settings):
    return lambda x: F.interpolate(x, **settings)


PYTORCH = "pytorch_half_pixel"
TORCH = rows(
    ("nearest", {"scales": [1, 1, 2, 3], "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
     {"scale_factor": (2, 3)}),
    ("bilinear", {"sizes": [2, 2, 5, 7], "mode": "linear", "coordinate_transformation_mode": PYTORCH},
     {"size": (5, 7), "mode": "bilinear"}),
    ("bilinear, smaller", {"sizes": [2, 2, 2, 3], "mode": "linear", "coordinate_transformation_mode": PYTORCH},
     {"size": (2, 3), "mode": "bilinear"}),
    ("align corners", {"sizes": [2, 2, 5, 7], "mode": "linear", "coordinate_transformation_mode": "align_corners"},
     {"size": (5, 7), "mode": "bilinear", "align_corners": True}),
)


@pytest.mark.parametrize(("settings", "torch_settings"), TORCH)
def test_as_torch(settings, torch_settings):
    assert_as_torch(resized(**settings), torch_resized(**torch_settings), [real(2, 2, 4, 5)])


@pytest.mark.skipif(OLD, reason="onnxruntime 1.19.2 does not accept them")
def test_axes_from_the_end():
    # onnx's reference evaluator does not accept them.
    x = variable("x", "float32", [1, 2, 3, 4])
    y = {f"y{i}": op.Resize(x, None, [2.0, 1.5], axes=axes, mode="linear") for i, axes in enumerate([[-2, -1], [2, 3]])}
    model = build([x], {n: grad(v * v, [x])[0] for n, v in y.items()})
    found = evaluate(model, {"x": real(1, 2, 3, 4).astype(np.float32)})
    np.testing.assert_array_equal(found["y0"], found["y1"])


def test_a_batch_needs_a_product_for_each_axis():
    x, dy = variable("x", "float32", ["N", 3, 4, 5]), variable("dy", "float32", ["N", 3, 8, 10])
    y = op.Resize(x, None, np.array([1, 1, 2, 2], np.float32), mode="linear")
    model = build([dy], grad(y, [x], [dy]))
    found = [node.op_type for node in model.graph.node]
    # The runtime computes the matrices when it loads the graph: they depend on nothing.
    assert sorted(found) == ["MatMul", "MatMul", "Resize", "Resize", "Transpose"]
    (dx,) = evaluate(model, {"dy": np.ones((2, 3, 8, 10), np.float32)}).values()
    np.testing.assert_allclose(dx.sum(axis=(2, 3)), 80, rtol=1e-5)


def test_bicubic_as_torch():
    x, dy = real(2, 2, 4, 5).astype(np.float32), real(2, 2, 5, 7).astype(np.float32)
    given = [variable("x", "float32", x.shape), variable("dy", "float32", dy.shape)]
    y = resized(sizes=[2, 2, 5, 7], mode="cubic", coordinate_transformation_mode=PYTORCH)(given[0])
    (dx,) = evaluate(build(given[1:], grad(y, given[:1], given[1:])), {"dy": dy}).values()
    t = torch.tensor(x, requires_grad=True)
    F.interpolate(t, size=(5, 7), mode="bicubic").backward(torch.tensor(dy))
    np.testing.assert_allclose(dx, t.grad.numpy(), atol=1e-5)


RATIOS = rows(
    ("not larger", {"sizes": [7, 8], "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}),
    ("not smaller", {"sizes": [7, 8], "axes": [2, 3], "keep_aspect_ratio_policy": "not_smaller"}),
    ("axes in another order", {"sizes": [9, 7], "axes": [3, 2], "keep_aspect_ratio_policy": "not_larger"}),
    ("smaller", {"sizes": [3, 3], "axes": [2, 3], "keep_aspect_ratio_policy": "not_smaller"}),
    ("the same size by another ratio", {"sizes": [5, 9], "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}),
    ("one axis", {"sizes": [9], "axes": [3], "keep_aspect_ratio_policy": "not_larger"}),
    ("corners", {"sizes": [7, 8], "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger",
                 "coordinate_transformation_mode": "align_corners"}),
)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("settings", RATIOS)
def test_a_ratio_that_is_kept(settings, mode):
    # In float32, as onnx's reference evaluator rounds sizes in a way of its own.
    f = resized(mode=mode, **settings)
    check_gradient(f, [real(1, 2, 5, 6)], directions=1, order=1, dtype=np.float32, step=1, rtol=1e-4)


def test_a_ratio_that_is_kept_of_a_crop_is_refused():
    x, roi = variable("x", "float32", [1, 1, 4, 5]), [0.1, 0.1, 0.9, 0.9]
    y = op.Resize(x, roi, None, [8, 8], axes=[2, 3], keep_aspect_ratio_policy="not_larger",
                  coordinate_transformation_mode="tf_crop_and_resize")
    with pytest.raises(NoGradientError, match=r"Resize> has keep_aspect_ratio_policy=not_larger and .* Give the node"):
        grad(y, [x])
