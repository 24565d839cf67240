"""A gradient of second order is computed by the same expressions on every runtime, and takes longest."""

import pytest
from groups import is_here

from ortpartial.testing import check_gradient


@pytest.fixture(autouse=True)
def sampled_order(request, monkeypatch):
    """`make test` checks a test to the second order on the runtime of its group, `make proof` wherever it runs."""
    if request.config.option.markexpr == "not slow" and not is_here(request.node.nodeid):
        monkeypatch.setitem(check_gradient.__kwdefaults__, "order", 1)
