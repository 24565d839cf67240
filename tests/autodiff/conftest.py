"""A gradient of second order is computed by the same expressions on every runtime, and takes longest."""

from zlib import crc32

import pytest

from ortpartial.runtime.device import has_training
from ortpartial.testing import check_gradient


@pytest.fixture(autouse=True)
def sampled_order(request, monkeypatch):
    """`make test` checks one half of the tests to the second order on onnxruntime-training, the other on onnxruntime.

    `make proof` checks all of those that it runs.
    """
    is_here = crc32(request.node.nodeid.encode()) % 2 == has_training()
    if request.config.option.markexpr == "not slow" and not is_here:
        monkeypatch.setitem(check_gradient.__kwdefaults__, "order", 1)
