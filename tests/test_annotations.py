"""Types of annotations: they are there at run time, too, so that tools can read the hints of a signature."""

from typing import Any, get_type_hints

import pytest

from ortpartial import annotations, nn


def test_all_are_listed():
    names = {n for n, v in vars(annotations).items() if not n.startswith("_") and n not in (
        "Any", "Callable", "Mapping", "Sequence", "TYPE_CHECKING", "TypeAlias", "TypeVar", "annotations")}
    assert names == {*annotations.__all__}


@pytest.mark.parametrize("method", [nn.Module.train, nn.Sequential.append, nn.Linear.__new__])
def test_methods_that_return_their_object_have_hints(method):
    assert get_type_hints(method)["return"] is Any
