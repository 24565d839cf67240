"""Fingerprints of objects: equal where two compute the same, compared by content, or by identity where it is hidden."""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
import sysconfig
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from ortpartial.annotations import Settings

from .validation import PieceType

__all__ = ["fingerprint", "list_attributes", "list_held"]

#: Immutable objects that equal others of the same content.
_PLAIN = frozenset({type(None), bool, int, str, bytes, complex, type(Ellipsis), range})

_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})

#: Objects that are compared by identity.
_HIDDEN = (BuiltinFunctionType, CellType, ModuleType, np.dtype, np.ufunc)

#: Where files of libraries stand, and names in place of files.
_LIBRARIES = (sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]), "<frozen", "<__array_function__")

#: Elements from which on arrays are compared by a digest.
_LARGE = 4096


class _Same:
    """An object that is equal to itself alone, and alive as long as it is compared."""

    __slots__ = ("content",)

    def __init__(self, content: object):
        self.content = content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.content is self.content

    def __hash__(self) -> int:
        return id(self.content)


def fingerprint(value: object) -> Hashable:
    """The fingerprint of an object as it is now: a later change of the object does not change it.

    Numbers, strings and arrays are compared by their content, containers, pieces and other objects by their members,
    functions by their code, their defaults, their closures and the globals that they read. An object that shows nothing
    of its content, such as a lock, equals itself alone.

    Parameters
    ----------
    value : object
        A piece, a function, or a member of either.

    Returns
    -------
    hashable
        Equal where two objects compute the same; it may differ where they do all the same, as 1 and 1.0 do.

    Examples
    --------
    >>> def power(n):
    ...     return lambda x: x ** n
    >>> fingerprint(power(2)) == fingerprint(power(2)), fingerprint(power(2)) == fingerprint(power(3))
    (True, False)
    """
    return _Fingerprints().of(value)


def list_attributes(value: object) -> Settings:
    """List the attributes that an object holds, in its dict and its slots.

    Parameters
    ----------
    value : object
        The object.

    Returns
    -------
    dict of str to object
    """
    slots = [n for kind in reversed(type(value).__mro__) for n in _list_slots(kind)]
    return {**{n: getattr(value, n) for n in slots if hasattr(value, n)}, **getattr(value, "__dict__", {})}


def _list_slots(kind: type) -> list[str]:
    """The names of the slots that a class declares; private names are mangled."""
    declared = vars(kind).get("__slots__", ())
    names = [declared] if isinstance(declared, str) else list(declared)
    mangled = [f"_{kind.__name__.lstrip('_')}{n}" if n.startswith("__") and not n.endswith("__") else n for n in names]
    return [n for n in mangled if n not in ("__dict__", "__weakref__")]


class _Fingerprints:
    """Fingerprints of objects that refer to each other, in circles as well."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._kept: list[object] = []  # so that no other object gets the same id

    def of(self, value: Any) -> Hashable:
        """The fingerprint of an object; its place where it was met before."""
        kind = type(value)
        if kind in _PLAIN:
            return kind, value
        if kind is float:
            return kind, value.hex()  # NaN equals itself, and -0.0 differs from 0.0.
        if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
            return kind, _read_array(np.asarray(value))
        if id(value) in self._places:
            return "met before", self._places[id(value)]
        self._places[id(value)] = len(self._places)
        self._kept.append(value)
        if isinstance(value, type):
            return self._of_class(value)
        if isinstance(value, FunctionType):
            return self._of_function(value)
        if kind is object or isinstance(value, _HIDDEN):
            return _Same(value)
        if kind in _CONTAINERS:
            return kind, self._of_elements(value)
        if isinstance(value, MethodType):
            return kind, self.of(value.__func__), self.of(value.__self__)
        if kind.__module__.startswith("ortpartial.") and not isinstance(kind, PieceType):
            return _Same(value) if kind.__hash__ is None else value  # Values, for example, never change.
        return self._of_object(value)

    def _of_elements(self, container: Any) -> Hashable:
        """The fingerprints of all elements of a container."""
        if isinstance(container, dict):
            return tuple([(self.of(k), self.of(v)) for k, v in container.items()])
        return (frozenset if isinstance(container, (set, frozenset)) else tuple)([self.of(v) for v in container])

    def _of_object(self, value: object) -> Hashable:
        """The fingerprint of an object's contents: attributes, and the further state that copy and pickle read."""
        kind = type(value)
        if hasattr(value, "__array__") and (array := _to_array(value)) is not None:
            return self.of(kind), _read_array(array)
        held = list_attributes(value)
        if isinstance(kind, PieceType):  # A piece of a former version may lack fields, which are then the class's.
            held = {n: getattr(value, n) for n in getattr(kind, "__dataclass_fields__", ()) if hasattr(value, n)} | held
        attributes = tuple([(n, self.of(v)) for n, v in held.items()])
        if isinstance(kind, PieceType):
            return self.of(kind), attributes
        try:
            parts = value.__reduce_ex__(4)
            assert isinstance(parts, tuple)
        except Exception:  # Of any kind: the code of others.
            return self.of(kind), attributes, _Same(value)
        return self.of(kind), attributes, self.of([list(p) if isinstance(p, Iterator) else p for p in parts])

    def _of_function(self, f: FunctionType) -> Hashable:
        """The fingerprint of a function: its code, and all that the code reads from elsewhere."""
        return _Same(f.__code__), self.of([vars(f), *list_held(f)])

    def _of_class(self, kind: type) -> Hashable:
        """The fingerprint of a class: itself, and its attributes as far as users have written and may change them."""
        return _Same(kind), tuple([
            (n, self.of(_unwrap(v))) for k in kind.__mro__ if _is_written(k) for n, v in vars(k).items()
            if n == "__call__" or not (n.startswith("__") or n == "_abc_impl")])


def list_held(f: FunctionType) -> list[object]:
    """List the objects that a function reads beside its arguments: defaults, the content of its closure, and globals.

    Parameters
    ----------
    f : function
        A function of Python.

    Returns
    -------
    list of object
        The globals of a function of a library are not among them.

    Examples
    --------
    >>> def power(n):
    ...     return lambda x, scale=0.5: scale * x ** n
    >>> list_held(power(3))
    [(0.5,), None, [3], []]
    """
    paths = () if _is_installed(f.__code__.co_filename) else list_globals(f.__code__)
    cells = [_read_cell(cell) for cell in f.__closure__ or ()]
    return [f.__defaults__, f.__kwdefaults__, cells, [_follow(f.__globals__, path) for path in paths]]


def _is_installed(file: str) -> bool:
    """Whether a file of Python belongs to a library, which does not change while a program runs."""
    return file.startswith(_LIBRARIES) or "site-packages" in file or "dist-packages" in file


@functools.cache
def _is_written(kind: type) -> bool:
    """Whether a class stands in a file of a user, in a notebook or at a prompt."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return not _is_installed(file) if file else kind.__module__ not in sys.builtin_module_names


def _unwrap(attribute: object) -> Any:
    """The function in a static method, a class method or a property."""
    return getattr(attribute, "__func__", None) or getattr(attribute, "fget", None) or attribute


def _read_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return cell  # It is empty.


def _to_array(value: object) -> np.ndarray | None:
    """The numbers of a tensor of another library, where numpy can read them."""
    try:
        array = np.asarray(value.detach() if hasattr(value, "detach") else value)
    except Exception:  # Of any kind: the code of others.
        return None
    return None if array.dtype.hasobject else array


def _read_array(array: np.ndarray) -> Hashable:
    """Element type, shape and content of an array."""
    content = array.tobytes()
    return array.dtype.str, array.shape, content if array.size < _LARGE else hashlib.blake2b(content).digest()


@functools.cache
def list_globals(code: CodeType) -> tuple[tuple[str, ...], ...]:
    """List the globals that code reads, each with the attributes that it reads of it.

    Parameters
    ----------
    code : code
        The code of a function.

    Returns
    -------
    tuple of tuple of str

    Examples
    --------
    >>> list_globals((lambda x: math.pi * scale * x).__code__)
    (('math', 'pi'), ('scale',))
    """
    paths: dict[tuple[str, ...], None] = {}
    path: list[str] = []
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and path:
            path.append(step.argval)
        elif path and step.opname not in ("CACHE", "PRECALL"):
            paths[tuple(path)] = None
            path = []
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            path = [step.argval]
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            paths.update(dict.fromkeys(list_globals(inner)))
    return tuple(paths)


def _follow(names: Mapping[str, object], path: Iterable[str]) -> Any:
    """The object at the end of a path: attributes are followed through modules alone."""
    first, *rest = path
    value = names.get(first)
    for name in rest:
        if not isinstance(value, ModuleType) or value.__name__.partition(".")[0] in ("numpy", "ortpartial"):
            break
        value = getattr(value, name, None)
    return value
