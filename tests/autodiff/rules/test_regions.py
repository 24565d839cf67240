"""Gradients of region pooling."""

from itertools import product

import numpy as np
import pytest
from table import NOTHING, apart

from ortpartial.autodiff.grad import grad
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.testing import check_gradient, evaluate

IMAGES = apart(2, 2, 6, 5)
# The second is larger than the image it is in, the third smaller than an element.
REGIONS = np.array([[0.31, 0.23, 4.13, 3.37], [-1.63, -0.94, 7.27, 8.33], [1.13, 2.41, 1.67, 2.93]])


def aligned(images=(0, 1, 1), **settings):
    settings = {"output_height": 2, "output_width": 3, "spatial_scale": 0.9, **settings}
    return lambda x, rois: op.RoiAlign(x, rois, constant(np.array(images)), **settings)


SETTINGS = [
    pytest.param({"mode": mode, "coordinate_transformation_mode": corners, "sampling_ratio": ratio},
                 id=f"{mode}-{corners}-{ratio}")
    for mode, corners, ratio in product(["avg", "max"], ["half_pixel", "output_half_pixel"], [0, 1, 3])
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("settings", SETTINGS)
def test_roi_align(settings):
    check_gradient(aligned(**settings), [IMAGES, REGIONS], directions=1, order=1, rtol_float32=1e-3)


@pytest.mark.slow
def test_roi_align_to_the_second_order():
    check_gradient(aligned((1,)), [IMAGES, REGIONS[:1]], directions=1, rtol_float32=1e-3)


def test_samples_of_a_region_that_is_turned_round():
    # Its bins have no samples at all, so that they are 0.
    rois = np.array([[4.1, 3.3, 0.3, 0.2]])
    check_gradient(aligned((0,), mode="avg"), [IMAGES, rois], order=1)


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (7, 7)], ids=str)
def test_max_roi_pool(shape, scale):
    # onnxruntime has it in float32 alone, onnx's reference evaluator not at all.
    # The last are one element, what lies before the image, and what is rounded down by very little.
    rois = np.array([[0, 1, 1, 4, 4], [1, 0, 2, 5, 3], [1, 4, 4, 9, 9], [0, 7, 7, 9, 9], [1, 2, 2, 2, 2],
                     [0, -7, -7, -4, -4], [0, 0.993, 0.993, 4, 4]], np.float32)

    def f(x):
        return op.MaxRoiPool(x, constant(rois), pooled_shape=shape, spatial_scale=scale)

    order = 2 if shape == (2, 3) else 1
    check_gradient(f, [apart(2, 2, 6, 6)], dtype=np.float32, step=1e-2, rtol=5e-3, order=order)


def test_ties_share_and_empty_bins_have_no_gradient():
    x = variable("x", "float32", [1, 1, 3, 3])
    rois = constant(np.array([[0, 0, 0, 1, 1], [0, 7, 7, 9, 9]], np.float32))
    (dx,) = grad(op.MaxRoiPool(x, rois, pooled_shape=[1, 1]), [x])
    (found,) = evaluate(build([x], [dx]), {"x": np.ones((1, 1, 3, 3), np.float32)}).values()
    assert found.tolist() == [[[[0.25, 0.25, 0], [0.25, 0.25, 0], [0, 0, 0]]]]


@NOTHING
def test_of_no_regions():
    check_gradient(aligned(np.zeros(0, np.int64)), [IMAGES, np.zeros((0, 4))], order=1)
    check_gradient(lambda x, rois: op.MaxRoiPool(x, rois, pooled_shape=[2, 2]), [IMAGES, np.zeros((0, 5))],
                   dtype=np.float32, step=1e-2, wrt=[0], order=1)
