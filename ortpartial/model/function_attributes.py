"""Attributes of local functions: calls take the defaults of omitted attributes before they are inlined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto

from .walk import walk_protos

__all__ = ["fill_attributes"]

#: Domain, name and overload of a function.
_Key = tuple[str, str, str]


def fill_attributes(model: ModelProto) -> None:
    """Write the default of each attribute that a call of a local function leaves out at the call.

    onnx's inliner (1.23.2) ignores the defaults of `FunctionProto.attribute_proto`. A function whose calls leave out
    different attributes becomes several, as an attribute that refers to an omitted attribute does not exist.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, whose calls and functions are written to. No function calls itself.
    """
    if any(f.attribute_proto for f in model.functions):
        calls = _Calls({_key(f): f for f in model.functions})
        calls.fill(walk_protos(model.graph))
        del model.functions[:]
        model.functions.extend(calls.variants.values())


def _key(f: FunctionProto) -> _Key:
    return f.domain, f.name, f.overload


@dataclass(frozen=True)
class _Calls:
    """The functions of a model, and a copy of each for every set of attributes that it is called with."""

    functions: dict[_Key, FunctionProto]
    variants: dict[tuple[_Key, frozenset[str]], FunctionProto] = field(default_factory=dict)

    def fill(self, nodes: Iterator[NodeProto]) -> None:
        """Complete the calls among some nodes."""
        for node in nodes:
            function = self.functions.get((node.domain, node.op_type, node.overload))
            if function is not None:
                written = {a.name for a in node.attribute}
                node.attribute.extend(a for a in function.attribute_proto if a.name not in written)
                node.op_type = self._specialize(function, frozenset(a.name for a in node.attribute))

    def _specialize(self, function: FunctionProto, attributes: frozenset[str]) -> str:
        """The name of a function that is called with these attributes and no others."""
        key = _key(function)
        if (key, attributes) not in self.variants:
            variant = FunctionProto()
            variant.CopyFrom(function)
            if any(other == key for other, _ in self.variants):
                variant.name = self._new_name(function)
            # Its attributes have values at every call.
            del variant.attribute_proto[:]
            variant.attribute[:] = sorted(attributes)
            self.variants[key, attributes] = variant
            for node in walk_protos(variant):
                _drop_absent(node, attributes)
            self.fill(walk_protos(variant))
        return self.variants[key, attributes].name

    def _new_name(self, function: FunctionProto) -> str:
        taken = {name for _, name, _ in self.functions} | {f.name for f in self.variants.values()}
        name, i = function.name, 1
        while name in taken:
            name, i = f"{function.name}.{i}", i + 1
        return name


def _drop_absent(node: NodeProto, attributes: frozenset[str]) -> None:
    """Remove the attributes of a node that refer to attributes missing in the call of a function."""
    kept: list[AttributeProto] = [a for a in node.attribute if not a.ref_attr_name or a.ref_attr_name in attributes]
    if len(kept) < len(node.attribute):
        kept = [AttributeProto.FromString(a.SerializeToString()) for a in kept]
        del node.attribute[:]
        node.attribute.extend(kept)
