"""Gradients of spectra."""

import numpy as np
import pytest
import torch
from onnx import parser
from table import OLD, assert_as_torch, real, rows

from ortpartial.autodiff.grad import grad
from ortpartial.graph.build import build
from ortpartial.graph.ops import op
from ortpartial.model.load import load
from ortpartial.testing import check_gradient, evaluate

INVERSE_OF_REAL = pytest.mark.skipif(OLD, reason="onnxruntime 1.19.2 has no inverse transform to real numbers")


def dft(n=None, axis=None, **settings):
    return lambda x: op.DFT(x, n, axis, **settings)


CASES = rows(
    ("DFT", dft(), [real(2, 5, 1)]),
    ("DFT complex", dft(), [real(1, 5, 2)]),
    ("DFT axis", dft(axis=1), [real(2, 4, 3, 2)]),
    ("DFT padded", dft(6), [real(1, 4, 2)]),
    ("DFT cropped", dft(3), [real(1, 5, 1)]),
    ("DFT onesided", dft(onesided=1), [real(2, 6, 1)]),
    ("DFT onesided, odd", dft(axis=0, onesided=1), [real(5, 2, 1)]),
    ("DFT onesided, padded", dft(8, onesided=1), [real(1, 5, 1)]),
    ("DFT onesided, cropped", dft(4, onesided=1), [real(1, 5, 1)]),
    ("DFT inverse", dft(inverse=1), [real(2, 5, 2)]),
    ("DFT inverse, padded", dft(7, inverse=1), [real(1, 5, 2)]),
    ("DFT along an axis at run time", lambda x, n, axis: op.DFT(x, n, axis, onesided=1),
     [real(2, 5, 3, 1), np.array(6), np.array(1)]),
    ("STFT", lambda x, w: op.STFT(x, 2, w), [real(2, 11, 1), real(4)]),
    ("STFT of a length", lambda x: op.STFT(x, 3, None, 5), [real(1, 11, 1)]),
    ("STFT twosided", lambda x, w: op.STFT(x, 2, w, 4, onesided=0), [real(1, 9, 1), real(4)]),
)


@pytest.mark.parametrize(("f", "args"), CASES)
def test_spectra(f, args):
    check_gradient(f, args, directions=1)


def torch_dft(transform, n):
    return lambda x: torch.view_as_real(transform(x[..., 0], n=n))


TORCH = rows(
    ("rfft", dft(6, onesided=1), torch_dft(torch.fft.rfft, 6), [real(2, 5, 1)]),
    ("fft", dft(7), torch_dft(torch.fft.fft, 7), [real(2, 5, 1)]),
    ("ifft", dft(inverse=1), lambda x: torch.view_as_real(torch.fft.ifft(torch.view_as_complex(x))), [real(2, 5, 2)]),
    ("STFT", lambda x, w: op.STFT(op.Unsqueeze(x, [2]), 2, w), lambda x, w: torch.view_as_real(torch.stft(
        x, 4, 2, window=w, center=False, return_complex=True)).transpose(1, 2), [real(2, 11), real(4)]),
)


@pytest.mark.parametrize(("f", "torch_f", "args"), TORCH)
def test_as_torch(f, torch_f, args):
    assert_as_torch(f, torch_f, args)


@INVERSE_OF_REAL
@pytest.mark.parametrize("n", [8, 7, 6])
def test_inverse_of_real_numbers(n):
    """onnxruntime 1.31.1 computes some of it in float32 alone, in float64 as well."""
    def torch_f(x):
        return torch.fft.irfft(torch.view_as_complex(x), n=n)[..., None]

    assert_as_torch(lambda x: op.DFT(x, n, onesided=1, inverse=1), torch_f, [real(2, 5, 2)], rtol=1e-5)


def test_a_spectrum_is_onesided_by_default():
    """Inference, in onnx 1.23.2 and in onnxruntime, takes it for a twosided one."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 12, 1] x, float[4] w) => (float[2, 5, 3, 2] y) {
            step = Constant <value_int = 2> ()
            s = STFT(x, step, w)
            y = Mul(s, s)
        }""")
    loaded = load(model)
    assert loaded.outputs["y"].shape == (2, 5, 3, 2)
    (dx,) = grad(loaded.outputs["y"], [loaded.inputs["x"]])
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(2, 12, 1)).astype(np.float32), "w": np.hanning(4).astype(np.float32)}
    (found,) = evaluate(build(loaded.inputs, {"dx": dx}), feeds).values()
    x = torch.tensor(feeds["x"][..., 0], requires_grad=True)
    spectrum = torch.stft(x, 4, 2, window=torch.tensor(feeds["w"]), center=False, return_complex=True)
    (expected,) = torch.autograd.grad(torch.view_as_real(spectrum).square().sum(), [x])
    np.testing.assert_allclose(found[..., 0], expected, rtol=1e-4, atol=1e-5)
