"""Gradients of spectra."""

import numpy as np
import pytest
import torch
from table import OLD, assert_as_torch, real, rows

from ortpartial.graph.ops import op
from ortpartial.testing import check_gradient

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
