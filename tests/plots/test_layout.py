"""Layers and lanes."""

from ortpartial.plots.layout import lay_out

SIZE = (2.0, 1.0)


def test_layers():
    """Each box is below those that it reads; a source stands right above its reader."""
    layout = lay_out([SIZE] * 5, [(0, 2), (2, 3), (1, 3), (3, 4)])
    assert layout.layers == [0, 1, 1, 2, 3]
    heights = [y for _, y in layout.centers]
    assert heights[0] < heights[1] == heights[2] < heights[3] < heights[4]


def test_lanes():
    """Connections that overlap run side by side, others share a lane; none passes through a box."""
    layout = lay_out([SIZE] * 5, [(0, 1), (1, 2), (2, 3), (3, 4), (0, 2), (2, 4), (0, 4)])
    lanes = {edge: max(x for x, _ in path) for edge, path in layout.paths.items() if len(path) > 2}
    assert lanes[0, 2] == lanes[2, 4] > 1
    assert lanes[0, 4] > lanes[0, 2]
    assert layout.right == lanes[0, 4]


def test_side_by_side():
    layout = lay_out([SIZE] * 3, [(0, 1), (0, 2)])
    (x1, _), (x2, _) = layout.centers[1:]
    assert x2 - x1 > SIZE[0]
    assert abs(x1 + x2 - 2 * layout.centers[0][0]) < 1e-9
