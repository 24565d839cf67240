"""Convolutions and pools by their definition, in numpy: sums over the places of a kernel, with their gradients."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Geometry", "convolve", "convolve_back", "draw_geometry", "transpose_convolve", "window_columns"]


@dataclass(frozen=True)
class Geometry:
    """Where a kernel stands: its sizes, its steps, and the zeros before and behind the images."""

    kernel: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    pads: Sequence[int]

    @property
    def around(self) -> list[tuple[int, int]]:
        """The pads of all axes of images (N, C, ...)."""
        r = len(self.kernel)
        return [(0, 0), (0, 0), *zip(self.pads[:r], self.pads[r:], strict=True)]

    def positions(self, sizes: Sequence[int]) -> list[int]:
        """The numbers of positions on images of these sizes, without what is left over."""
        around = zip(sizes, self.around[2:], self.kernel, self.dilations, self.strides, strict=True)
        return [(n + sum(p) - (k - 1) * d - 1) // s + 1 for n, p, k, d, s in around]

    def places(self, m: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
        """Each place of the kernel, and the elements of padded images that it sees at m positions."""
        for place in np.ndindex(*self.kernel):
            steps = zip(place, self.dilations, self.strides, m, strict=True)
            yield place, (..., *(slice(p * d, p * d + (j - 1) * s + 1, s) for p, d, s, j in steps))


def draw_geometry(d, r: int, most: int = 4) -> tuple[Geometry, list[int], dict]:
    """A kernel on random images: its geometry, the sizes of the images, and the attributes of Conv that say so."""
    kernel = [d.size(empty=0, most=most) for _ in range(r)]
    strides, dilations = ([d.one(1, 1, 2, 3) for _ in range(r)] for _ in "sd")
    sizes = [int(d.rng.integers((k - 1) * e + 1, (k - 1) * e + 6)) for k, e in zip(kernel, dilations, strict=True)]
    auto = d.one("NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    settings = {"strides": strides}
    pads = [0] * 2 * r
    if auto == "NOTSET" and d.chance(0.7):
        pads = [int(d.rng.integers(0, k)) for k in kernel * 2]
        settings["pads"] = pads
    elif auto != "NOTSET":
        settings["auto_pad"] = auto
    if auto.startswith("SAME"):
        # onnxruntime 1.19 to 1.32 refuses dilations here, and 1.19.2 is wrong where elements are left over.
        dilations = [1] * r
        strides[:] = [min(s, k) for s, k in zip(strides, kernel, strict=True)]
        total = [max(0, (-(-n // s) - 1) * s + k - n) for n, s, k in zip(sizes, strides, kernel, strict=True)]
        less, more = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = [*less, *more] if auto == "SAME_UPPER" else [*more, *less]
    return Geometry(kernel, strides, dilations, pads), sizes, {**settings, "dilations": dilations}


def convolve(x: np.ndarray, w: np.ndarray, g: Geometry, group: int = 1) -> np.ndarray:
    """y[n, o, p] = Σ over c and places q of x[n, c, p·stride + q·dilation] w[o, c, q]."""
    m = g.positions(x.shape[2:])
    padded = np.pad(x, g.around)
    y = np.zeros((len(x), group, len(w) // group, *m))
    for place, seen in g.places(m):
        images = padded[seen].reshape(len(x), group, -1, *m)
        with np.errstate(invalid="ignore"):
            y += np.einsum("ngc...,goc->ngo...", images, w[(..., *place)].reshape(group, len(w) // group, -1))
    return y.reshape(len(x), len(w), *m)


def convolve_back(x: np.ndarray, w: np.ndarray, dy: np.ndarray, g: Geometry, group: int = 1
                  ) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of x and w: each place gives back to what it has seen."""
    m, o = dy.shape[2:], len(w) // group
    padded, dw = np.pad(x, g.around), np.zeros(w.shape)
    dx = np.zeros(padded.shape)
    apart = dy.reshape(len(x), group, o, *m)
    for place, seen in g.places(m):
        images, at = padded[seen].reshape(len(x), group, -1, *m), (..., *place)
        lines = (a.reshape(*a.shape[:3], -1) for a in (images, apart))
        dw[at] = np.einsum("ngcp,ngop->goc", *lines).reshape(len(w), -1)
        kernels = w[at].reshape(group, o, -1)
        dx[seen] += np.einsum("ngo...,goc->ngc...", apart, kernels).reshape(len(x), -1, *m)
    inside = tuple(slice(a, a + n) for (a, _), n in zip(g.around, x.shape, strict=True))
    return dx[inside], dw


def transpose_convolve(x: np.ndarray, w: np.ndarray, sizes: Sequence[int], g: Geometry, group: int = 1) -> np.ndarray:
    """The images of these sizes to which a convolution by w, (C, O / group, ...), would give x back."""
    zeros = np.zeros((len(x), w.shape[1] * group, *sizes))
    return convolve_back(zeros, w, x, g, group)[0]


def window_columns(x: np.ndarray, m: Sequence[int], g: Geometry) -> np.ndarray:
    """The elements at each place of the kernel and at each of m positions: (channels · places, batch · positions)."""
    padded = np.pad(x, g.around)
    seen = np.stack([padded[at] for _, at in g.places(m)], 2)
    return np.moveaxis(seen, 0, 2).reshape(x.shape[1] * seen.shape[2], -1)
