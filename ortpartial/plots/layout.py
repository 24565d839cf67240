"""Layered layout of boxes: each is below the boxes that it reads, and long connections run beside the boxes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Layout", "Point", "lay_out"]

Point = tuple[float, float]

#: Space between two boxes side by side, between two layers, and between two lanes, in inches.
_ASIDE, _BELOW, _LANE = 0.35, 0.46, 0.16

#: How far from a box a connection turns to its lane.
_TURN = 0.13


@dataclass(frozen=True)
class Layout:
    """Where boxes and connections are, in inches; y grows downward.

    Parameters
    ----------
    centers : list of tuple of float
        The center of every box.
    layers : list of int
        The layer of every box, from the top.
    paths : dict of tuple of int to list of tuple of float
        By source and target the corners of a connection.
    left, right, bottom : float
        The extent of all; the top is at 0.
    """

    centers: list[Point]
    layers: list[int]
    paths: dict[tuple[int, int], list[Point]]
    left: float
    right: float
    bottom: float


def lay_out(sizes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> Layout:
    """Place boxes and the connections between them.

    Parameters
    ----------
    sizes : sequence of tuple of float
        Width and height of every box.
    edges : sequence of tuple of int
        Source and target of every connection; a target comes after its sources.

    Returns
    -------
    Layout

    Examples
    --------
    >>> lay_out([(2, 1), (2, 1), (2, 1)], [(0, 1), (0, 2), (1, 2)]).layers
    [0, 1, 2]
    """
    layers = _find_layers(len(sizes), edges)
    rows: dict[int, list[int]] = defaultdict(list)
    for i, layer in enumerate(layers):
        rows[layer].append(i)
    centers: dict[int, Point] = {}
    y = 0.0
    for layer in sorted(rows):
        row = sorted(rows[layer], key=lambda j: _mean([centers[i][0] for i, k in edges if k == j and i in centers]))
        height = max(sizes[i][1] for i in row)
        x = -(sum(sizes[i][0] for i in row) + _ASIDE * (len(row) - 1)) / 2
        for i in row:
            centers[i] = x + sizes[i][0] / 2, y + height / 2
            x += sizes[i][0] + _ASIDE
        y += height + _BELOW
    paths = _route(sizes, edges, layers, rows, centers)
    xs = [x for corners in paths.values() for x, _ in corners]
    left = min([*xs, *(centers[i][0] - w / 2 for i, (w, _) in enumerate(sizes))])
    right = max([*xs, *(centers[i][0] + w / 2 for i, (w, _) in enumerate(sizes))])
    return Layout([centers[i] for i in range(len(sizes))], layers, paths, left, right, y - _BELOW)


def _find_layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The layer of every box: the next after the lowest of its sources; a box without any, right above its readers."""
    layers = [0] * count
    for i, j in sorted(edges, key=lambda edge: edge[1]):
        layers[j] = max(layers[j], layers[i] + 1)
    targets = {j for _, j in edges}
    for i in range(count):
        if i not in targets and (readers := [layers[j] for k, j in edges if k == i]):
            layers[i] = min(readers) - 1
    return layers


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def _route(sizes: Sequence[Point], edges: Sequence[tuple[int, int]], layers: Sequence[int],
           rows: Mapping[int, Sequence[int]], centers: Mapping[int, Point]) -> dict[tuple[int, int], list[Point]]:
    """The corners of every connection; connections that skip layers have lanes on the right."""
    paths: dict[tuple[int, int], list[Point]] = {}
    lanes: list[list[tuple[int, int]]] = []
    for i, j in sorted(edges, key=lambda edge: layers[edge[1]] - layers[edge[0]]):
        (x0, y0), (x1, y1) = centers[i], centers[j]
        top, bottom = y0 + sizes[i][1] / 2, y1 - sizes[j][1] / 2
        if layers[j] - layers[i] == 1:
            middle = (top + bottom) / 2
            paths[i, j] = [(x0, top), (x1, bottom)] if x0 == x1 else [(x0, top), (x0, middle), (x1, middle),
                                                                      (x1, bottom)]
            continue
        span = range(layers[i], layers[j] + 1)
        lane = _take_lane(lanes, span)
        x = max(centers[k][0] + sizes[k][0] / 2 for layer in span for k in rows[layer]) + _LANE * (lane + 1)
        x0, x1 = x0 + 0.35 * sizes[i][0], x1 + 0.35 * sizes[j][0]
        paths[i, j] = [(x0, top), (x0, top + _TURN), (x, top + _TURN), (x, bottom - _TURN), (x1, bottom - _TURN),
                       (x1, bottom)]
    return paths


def _take_lane(lanes: list[list[tuple[int, int]]], span: range) -> int:
    """The first lane that is free between two layers, which is taken."""
    first, last = span[0], span[-1]
    for lane, taken in enumerate(lanes):
        if all(last <= a or b <= first for a, b in taken):
            taken.append((first, last))
            return lane
    lanes.append([(first, last)])
    return len(lanes) - 1
