"""What an op is: its parameters, inputs, float64 reference, byte count and FLOP count.

An op's `op.py` holds one subclass of `Op` marked with `@define_op`.  It must not import torch at module level, so that
suites can be validated and cases listed without it; methods that compute import torch inside.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from ..errors import KernelDeclarationError
from .declaring import record

if TYPE_CHECKING:
    import torch

Buffers = Mapping[str, "torch.Tensor"]
"""Named contiguous tensors holding an op's input values, one per allocation; the harness places and guards each."""

Arguments = Mapping[str, Any]
"""What a kernel is called with, by the names in `Op.schema`."""


class Op(ABC):
    """A computation with a fixed mathematical definition.  Subclass, fill in, and mark with `@define_op`."""

    name: ClassVar[str]
    """Must equal the folder's name."""

    Params: ClassVar[type[msgspec.Struct]]
    """Frozen msgspec struct of a case's parameters; refuses unknown keys and impossible combinations (ValueError)."""

    schema: ClassVar[str]
    """Signature of every kernel of this op in torch's schema language, mutable arguments annotated (`Tensor(a!) q`) and
    `-> ()` for an in-place op."""

    outputs: ClassVar[tuple[str, ...]]
    """Names of the outputs.  For an in-place op they are the names of the arguments that are overwritten; an optional one that is not
    given is no output of that call (see `outputs_of`)."""

    in_place: ClassVar[bool] = False

    split_reference: ClassVar[str]
    """`name@version` of the split kernel whose error the `close` contract is relative to; it must run on every device."""

    baselines: ClassVar[tuple[str, ...]]
    """`name@version` of the kernels that speedups are relative to: the first that runs on the device is used."""

    dispatch_order: ClassVar[tuple[str, ...]] = ()
    """Kernel names, best first, that `dispatch` tries within the preferred role; the newest version of each."""

    @abstractmethod
    def buffers(self, params: Any, *, device: torch.device, generator: torch.Generator, magnitude: float = 1.0) -> Buffers:
        """Fresh random inputs on `device`: normal values with outlier channels, scaled by `magnitude`."""

    @abstractmethod
    def arguments(self, params: Any, buffers: Buffers) -> Arguments:
        """The kernel's arguments as views of `buffers`: strides and packing are made here."""

    @abstractmethod
    def reference(self, params: Any, arguments: Arguments) -> dict[str, torch.Tensor]:
        """The outputs in float64, computed from the rounded inputs, without touching `arguments`."""

    @abstractmethod
    def params_of(self, *args: Any, **kwargs: Any) -> Any:
        """The Params that a call's arguments amount to.  Raises KernelArgumentError for arguments no kernel may take."""

    @abstractmethod
    def minimum_bytes(self, params: Any) -> int:
        """Bytes that any implementation must move: each input read once, each output written once."""

    @abstractmethod
    def flops(self, params: Any) -> int:
        """Floating-point operations of the formula; a fused multiply-add counts two."""

    @abstractmethod
    def shape(self, params: Any) -> str:
        """A short human label, such as `4096x24x128 bf16`."""

    @abstractmethod
    def shrink(self, params: Any, rows: int) -> Any:
        """The same case with at most `rows` tokens, for interpreters."""

    def outputs_of(self, params: Any) -> tuple[str, ...]:
        """Names of the outputs of a case: all of `outputs`, unless an in-place op's optional argument is left out."""
        return self.outputs

    def device_of(self, *args: Any, **kwargs: Any) -> str:
        """`cpu` or `cuda`: where the call's first tensor lives."""
        tensor = args[0] if args else next(iter(kwargs.values()))
        return str(tensor.device.type)

    def fake(self, *args: Any, **kwargs: Any) -> Any:
        """Output shapes and dtypes without computing; an in-place op has no outputs of its own."""
        if not self.in_place:
            raise KernelDeclarationError(f"op {self.name!r} returns new tensors, so its op.py must define `fake`")

    def apply(self, kernel: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run `kernel` with the op's own semantics: whatever a kernel of an in-place op returns is copied into its arguments.

        Returns the outputs as a tuple (of the overwritten arguments that are given, for an in-place op).
        """
        returned = kernel(*args, **kwargs)
        if not self.in_place:
            return returned
        named = dict(zip(argument_names(self.schema), args, strict=False)) | dict(kwargs)
        targets = tuple(named[name] for name in self.outputs if named[name] is not None)
        if returned is not None:
            values = returned if isinstance(returned, tuple | list) else (returned,)
            for target, value in zip(targets, values, strict=True):
                target.copy_(value)
        return targets

    def parse_params(self, raw: Mapping[str, Any]) -> Any:
        """`raw` as this op's Params; msgspec.ValidationError names the offending key."""
        return msgspec.convert(dict(raw), self.Params, strict=True)


OpT = TypeVar("OpT", bound=type[Op])
_REQUIRED = ("name", "Params", "schema", "outputs", "split_reference", "baselines")


def define_op(cls: OpT) -> OpT:
    """Declare `cls` as the op of its folder."""
    missing = [attribute for attribute in _REQUIRED if not hasattr(cls, attribute)]
    if missing:
        raise KernelDeclarationError(f"op class {cls.__name__} in {cls.__module__} lacks {', '.join(missing)}")
    record(cls())
    return cls


@functools.cache
def argument_names(schema: str) -> tuple[str, ...]:
    """Names of the arguments of `schema`, in order: `(Tensor(a!) q, *, float eps) -> ()` gives `("q", "eps")`."""
    return positional_names(schema) + keyword_names(schema)


def positional_names(schema: str) -> tuple[str, ...]:
    """Names of the arguments before the `*`: the tensors, by convention."""
    names = _names(schema)
    return names[: names.index("*")] if "*" in names else names


def keyword_names(schema: str) -> tuple[str, ...]:
    """Names of the keyword-only arguments."""
    names = _names(schema)
    return names[names.index("*") + 1 :] if "*" in names else ()


def _names(schema: str) -> tuple[str, ...]:
    inside = schema[schema.index("(") + 1 : schema.rindex("->")].rstrip().removesuffix(")")
    arguments = (part.split("=", 1)[0].strip() for part in _split_top_level(inside))
    return tuple(argument.rsplit(" ", 1)[-1] for argument in arguments if argument)


def _split_top_level(text: str) -> Sequence[str]:
    parts, depth, current = [], 0, ""
    for character in text:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += character
    return [*parts, current]


Supports = Callable[[Any], "bool | str"]
"""True when the kernel takes the Params; a string is the reason why it does not."""
