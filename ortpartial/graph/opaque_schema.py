"""The schema of an opaque operator, from a node of it."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import AttributeProto, defs

__all__ = ["OpaqueSchema"]


@dataclass(frozen=True)
class OpaqueSchema:
    """The form of an operator without a schema, read from a node in place of an ``onnx.defs.OpSchema``.

    Parameters
    ----------
    domain, operator : str
        Domain and name.
    since_version : int
        The version of the domain that the file imports.
    n_inputs : int
        The number of inputs, each of which may be left out.
    named : tuple of bool
        Of each output, whether the node has it: these outputs are always there, as nothing says which are optional.
    kinds : tuple of (str, int)
        Names and types of the attributes.
    declared : tuple of bytes
        The type of each output as far as the file declares it, as the bytes of a TypeProto.
    """

    domain: str
    operator: str
    since_version: int
    n_inputs: int
    named: tuple[bool, ...]
    kinds: tuple[tuple[str, int], ...]
    declared: tuple[bytes, ...]

    has_function = has_context_dependent_function = deprecated = False
    type_constraints = ()

    @property
    def name(self) -> str:
        """The name with its domain, so that nothing takes ``my.domain.Relu`` for Relu."""
        return f"{self.domain}.{self.operator}"

    @property
    def inputs(self) -> list[defs.OpSchema.FormalParameter]:
        """Formal parameters, each of a type of its own."""
        option = defs.OpSchema.FormalParameterOption.Optional
        return [defs.OpSchema.FormalParameter(f"input_{i}", f"T{i}", param_option=option)
                for i in range(self.n_inputs)]

    @property
    def outputs(self) -> list[defs.OpSchema.FormalParameter]:
        """Formal results: optional are the outputs that the node lacks."""
        option = defs.OpSchema.FormalParameterOption
        return [defs.OpSchema.FormalParameter(f"output_{i}", f"U{i}",
                                              param_option=option.Single if is_named else option.Optional)
                for i, is_named in enumerate(self.named)]

    @property
    def attributes(self) -> dict[str, defs.OpSchema.Attribute]:
        """The attributes that the node has, without defaults."""
        kinds = {n: AttributeProto.AttributeType.Name(kind) for n, kind in self.kinds}
        return {n: defs.OpSchema.Attribute(n, getattr(defs.OpSchema.AttrType, kind), required=False)
                for n, kind in kinds.items()}

    @property
    def min_input(self) -> int:
        """The least number of inputs."""
        return 0

    @property
    def max_input(self) -> int:
        """The largest number of inputs."""
        return self.n_inputs

    @property
    def min_output(self) -> int:
        """The least number of outputs."""
        return len(self.named)
