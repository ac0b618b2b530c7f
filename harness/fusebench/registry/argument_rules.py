"""The rules that an op declares for its arguments with `axis`, `tensor` and `option`, and the check of a call against these rules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec

from ..errors import KernelArgumentError
from .layouts import ACTIVATION_DTYPES, Layout, refuse

Laid = Any
"""A call as `plan` and `case` see it: an object with the fields of the `Arguments` class, a `Layout` in the place of each tensor."""

MISSING: Any = object()
"""The default of an option that has none."""


@dataclass(frozen=True)
class Axis:
    """One axis of a call's tensors: the field of `Params` that holds its size, and the sizes that are accepted."""

    field: str = ""
    multiple_of: int = 1
    least: int = 0
    most: int | None = None
    one_of: tuple[int, ...] = ()

    def accepts(self, size: int) -> bool:
        """Whether a tensor of this size along the axis is accepted."""
        bounded = size >= self.least and (self.most is None or size <= self.most)
        return bounded and size % self.multiple_of == 0 and (not self.one_of or size in self.one_of)

    def rule(self, symbol: str) -> str:
        """The accepted sizes as text, such as `D a multiple of 8 from 8 to 8192`; empty when any size is accepted."""
        if self.one_of:
            return f"{symbol} one of {', '.join(map(str, self.one_of))}"
        words = [f"a multiple of {self.multiple_of}"] if self.multiple_of > 1 else []
        if self.least or self.most is not None:
            words.append(f"from {self.least}" + ("" if self.most is None else f" to {self.most}"))
        return " ".join((symbol, *words)) if words else ""


def axis(field: str = "", *, multiple_of: int = 1, least: int = 0, most: int | None = None, one_of: tuple[int, ...] = ()) -> Axis:
    """Declare an axis in the class keyword `axes`; `field` names the field of `Params` with its size."""
    return Axis(field, multiple_of, least, most, one_of)


@dataclass(frozen=True)
class TensorRule:
    shape: tuple[str, ...] | None
    dtype: tuple[str, ...]
    like: str
    contiguous: bool
    last_stride_one: bool
    mutable: bool
    optional: bool = False


@dataclass(frozen=True)
class OptionRule:
    type: str
    default: Any = MISSING
    choices: tuple[Any, ...] = ()
    positive: bool = False
    least: float | None = None


def tensor(
    shape: str | None = None,
    *,
    dtype: str | tuple[str, ...] = (),
    like: str = "",
    contiguous: bool = False,
    last_stride_one: bool = False,
    mutable: bool = False,
) -> Any:
    """Declare a tensor argument; annotate it `torch.Tensor`, or `torch.Tensor | None` where a call may pass None.

    Args:
        shape: its axes as symbols, such as `"B S D"`. A symbol has one size in all tensors of a call. None leaves the shape and
            dtype to the op's own `plan`.
        dtype: accepted dtypes by name. The name of another argument stands for that argument's dtype. By default the anchor takes the
            activation dtypes and every other tensor takes the anchor's dtype.
        like: name of an argument with the same shape and dtype.
        contiguous: refuse a tensor with gaps.
        last_stride_one: refuse a tensor whose last axis has gaps.
        mutable: the op overwrites this tensor. An op with mutable tensors is in-place: they are its outputs.
    """
    names = (dtype,) if isinstance(dtype, str) else dtype
    return TensorRule(None if shape is None else tuple(shape.split()), names, like, contiguous, last_stride_one, mutable)


def option(default: Any = MISSING, *, positive: bool = False, least: float | None = None) -> Any:
    """Declare a keyword option with a check; annotate it float, int, bool, str or a Literal of strings. A plain default works too.

    Args:
        default: the schema's default; required when not given.
        positive: accept positive finite numbers only.
        least: the smallest accepted number.
    """
    return OptionRule("", default, (), positive, least)


def check_call(laid: Laid) -> Any:
    """Check a call as declared, then by the op's own `plan`; returns the plan.

    Raises:
        KernelArgumentError: naming the argument, what came and what is accepted.
    """
    _bind_axes(laid)
    for name, one in laid.options.items():
        _check_option(laid.op, name, one, getattr(laid, name))
    return laid.plan(laid)


def _bind_axes(laid: Laid) -> dict[str, int]:
    """Check every tensor as declared, the anchor first; the sizes of the axes by symbol."""
    sizes: dict[str, int] = {}
    order = [laid.anchor, *(name for name in laid.tensors if name != laid.anchor)]
    for name in order:
        layout = getattr(laid, name)
        if layout is not None:
            _check_tensor(laid, name, laid.tensors[name], layout, sizes)
        if name == laid.anchor and laid.most_rows is not None and (rows := math.prod(layout.shape[:-1])) > laid.most_rows:
            refuse(laid.op, name, f"{rows} rows", f"at most {laid.most_rows}")
    anchor = getattr(laid, laid.anchor)
    for name in order[1:]:
        layout = getattr(laid, name)
        if layout is not None and layout.device != anchor.device:
            refuse(laid.op, name, f"device {layout.device}", f"{anchor.device}, like {laid.anchor}")
    return sizes


def _check_tensor(laid: Laid, name: str, declared: TensorRule, layout: Layout, sizes: dict[str, int]) -> None:
    """Refuse a tensor of another shape, dtype or stride than declared; bind the sizes of its axes."""
    or_none = ", or None" if declared.optional else ""
    if declared.like:
        other = getattr(laid, declared.like)
        if layout.shape != other.shape or layout.dtype != other.dtype:
            refuse(laid.op, name, str(layout), f"{list(other.shape)} in {other.dtype}, like {declared.like}{or_none}")
    elif declared.shape is not None:
        accepted, words = _dtypes(laid, name, declared)
        fits = len(layout.shape) == len(declared.shape) and layout.dtype_name in accepted
        known = dict(sizes)
        for symbol, size in zip(declared.shape, layout.shape, strict=False):
            axis = laid.axes.get(symbol)
            fits = fits and known.setdefault(symbol, size) == size and (axis is None or axis.accepts(size))
        if not fits or (declared.contiguous and not layout.is_contiguous):
            shape = ", ".join(str(sizes.get(symbol, symbol)) for symbol in declared.shape)
            rules = [laid.axes[symbol].rule(symbol) for symbol in declared.shape if symbol in laid.axes and symbol not in sizes]
            text = ", ".join([f"{'contiguous ' if declared.contiguous else ''}[{shape}] in {words}", *filter(None, rules)])
            refuse(laid.op, name, str(layout), text + or_none)
        sizes |= known
    if declared.last_stride_one and layout.strides[-1] != 1:
        refuse(laid.op, name, f"strides {tuple(layout.strides)}", "a last stride of 1")


def _dtypes(laid: Laid, name: str, declared: TensorRule) -> tuple[tuple[str, ...], str]:
    """Names of the accepted dtypes, and the same in words."""
    given = declared.dtype or (ACTIVATION_DTYPES if name == laid.anchor else (laid.anchor,))
    if len(given) == 1 and given[0] in laid.tensors:
        dtype = getattr(laid, given[0]).dtype
        return (str(dtype).removeprefix("torch."),), f"{dtype}, like {given[0]}"
    names = tuple(dict.fromkeys(getattr(laid, each).dtype_name if each in laid.tensors else each for each in given))
    return names, " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _check_option(op: str, name: str, declared: OptionRule, value: Any) -> None:
    if declared.choices and value not in declared.choices:
        refuse(op, name, repr(value), " or ".join(map(repr, declared.choices)))
    if declared.positive and not (math.isfinite(value) and value > 0):
        refuse(op, name, str(value), "a positive finite number")
    if declared.least is not None and value < declared.least:
        refuse(op, name, str(value), "zero or more" if declared.least == 0 else f"{declared.least} or more")


def case_of(laid: Laid, kind: type[msgspec.Struct]) -> Any:
    """A checked call as Params. An empty batch counts as one row: no kernel's support depends on the count of rows."""
    check_call(laid)
    sizes = _bind_axes(laid)
    found: dict[str, Any] = {laid.axes[symbol].field: max(1, size) for symbol, size in sizes.items() if symbol in laid.axes}
    found["dtype"] = getattr(laid, laid.anchor).dtype_name
    found |= {name: getattr(laid, name) for name in laid.options}
    known = {name: value for name, value in found.items() if name in kind.__struct_fields__}
    try:
        return kind(**known | dict(laid.case(laid)))
    except ValueError as error:
        raise KernelArgumentError(f"{laid.op}: {error}") from error
