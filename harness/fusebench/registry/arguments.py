"""The arguments of an op, declared once.

A subclass of `Arguments` in an op's `op.py` lists the tensors and keyword options of a call. From this one declaration come the torch
schema, the argument checks, the fake implementation, the allocation of outputs and the recovery of a call's `Params`:

    class Arguments(fusebench.Arguments, axes={"B": "batch", "S": "tokens", "D": axis("hidden", multiple_of=8)}, returns={"y": "x"}):
        x: torch.Tensor = tensor("B S D")
        weight: torch.Tensor | None = tensor("D", dtype=("x", "float32"), contiguous=True)
        eps: float = option(1e-6, positive=True)
        norm: Literal["layer", "rms"] = "layer"

A kernel takes one object of the class, `def fused(call: Arguments)`, and reads `call.x` and `call.eps`. The module imports no torch, so
that `op.py` need not either.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import msgspec

from ..errors import KernelDeclarationError
from .argument_rules import MISSING, Axis, Laid, OptionRule, TensorRule, case_of, check_call, tensor
from .layouts import Layout, check_device, remembered


class Arguments:
    """One call's arguments. Subclass it in `op.py`; see the module's docstring.

    Class keywords:
        axes: the axis of each symbol that shapes name: a field of `Params`, or `axis(...)` with the accepted sizes.
        anchor: the tensor whose dtype and device the others are compared with; the first one unless given.
        most_rows: the largest accepted product of the anchor's axes without the last one.
        returns: the outputs of an op that returns new tensors, each with the argument whose shape and dtype it has.
    """

    op: ClassVar[str] = "op"
    """Name of the op, set by `define_op`."""
    schema: ClassVar[str]
    tensors: ClassVar[dict[str, TensorRule]]
    options: ClassVar[dict[str, OptionRule]]
    axes: ClassVar[dict[str, Axis]]
    anchor: ClassVar[str]
    most_rows: ClassVar[int | None]
    returns: ClassVar[dict[str, str]]
    _values: ClassVar[Callable[[Any], tuple[Any, ...]]]
    _allocate: ClassVar[Callable[[Any], Any]]
    _checked: ClassVar[Callable[..., Any]]
    _params: ClassVar[Callable[..., Any]]
    _of: ClassVar[Callable[..., Any]]

    def __init_subclass__(
        cls,
        *,
        axes: Mapping[str, str | Axis] | None = None,
        anchor: str = "",
        most_rows: int | None = None,
        returns: Mapping[str, str] | None = None,
    ) -> None:
        cls.tensors, cls.options = _fields(cls)
        if not cls.tensors:
            raise KernelDeclarationError(f"{cls.__module__}.{cls.__qualname__} declares no tensor")
        cls.axes = {symbol: Axis(one) if isinstance(one, str) else one for symbol, one in (axes or {}).items()}
        cls.anchor = anchor or next(iter(cls.tensors))
        cls.most_rows = most_rows
        cls.returns = dict(returns or {})
        _require_known(cls)
        cls.schema = _schema(cls)
        cls._values = _generate(cls, "values(self)", [*(f"{name} = self.{name}" for name in cls.tensors), f"return ({_layouts(cls)})"])
        cls._allocate = _generate(cls, "allocate(self)", [f"return {_empty_outputs(cls)}"])
        cls.__init__ = _generate(cls, f"__init__(self, {_signature(cls)})", _assignments(cls, "self"))  # type: ignore[method-assign]
        names = ", ".join(_names(cls))
        cls._of = staticmethod(_generate(cls, f"of({names})", ["self = new(cls)", *_assignments(cls, "self"), "return self"]))
        cls._checked = staticmethod(remembered(lambda *values: check_call(cls._of(*values))))
        cls._params = staticmethod(remembered(lambda params, *values: case_of(cls._of(*values), params)))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("subclass Arguments and declare the call's tensors and options")

    @classmethod
    def bind(cls, kernel: Callable[[Any], Any]) -> Callable[..., Any]:
        """`kernel`, which takes one object of this class, as a function of the declared signature.

        The code is generated, as a dataclass's is: it costs one Python frame and no packing of arguments (0.09 us for seven arguments
        under CPython 3.11), and torch.compile traces it.  Written as `object.__new__`, not by another name: torch 2.11 traces no alias.
        """
        lines = ["call = object.__new__(cls)", *_assignments(cls, "call"), "return kernel(call)"]
        bound: Callable[..., Any] = _generate(cls, f"bound({_signature(cls)})", lines, kernel=kernel)
        bound.__name__, bound.__qualname__, bound.__doc__ = kernel.__name__, kernel.__qualname__, kernel.__doc__
        bound.__module__ = kernel.__module__
        return bound

    def checked(self) -> Any:
        """Check the call as declared, then by the op's own `plan`, and return that plan. Results are cached by layouts.

        Raises:
            KernelArgumentError: naming the argument, what came and what is accepted.
        """
        return self._checked(*self._values())

    def params(self, kind: type[msgspec.Struct]) -> Any:
        """The case that this call amounts to, as the op's `Params`. Results are cached by layouts.

        Raises:
            KernelArgumentError: arguments that no kernel may take, or that no case describes.
        """
        return self._params(kind, *self._values())

    def allocate(self) -> Any:
        """Uninitialised outputs as declared by `returns`: one tensor, or a tuple of several. None for an in-place op."""
        return self._allocate()

    def fix_widths(self) -> None:
        """Make the traced sizes of axes with a rule, such as a row's width, constants of the trace: kernels are compiled for them."""
        for name, declared in self.tensors.items():
            value = getattr(self, name)
            if value is not None and declared.shape is not None:
                for symbol, size in zip(declared.shape, value.shape, strict=False):
                    if symbol in self.axes and self.axes[symbol].rule(symbol):
                        int(size)

    def require_gpu(self, *, interpreted: bool = True) -> None:
        """Refuse a call on host memory.

        Args:
            interpreted: whether this kernel also runs on host memory while Triton's interpreter is on.

        Raises:
            KernelArgumentError: the anchor is not on a GPU.
        """
        check_device(self.op, self.anchor, getattr(self, self.anchor), interpreted=interpreted)

    @staticmethod
    def plan(laid: Laid) -> Any:
        """The op's own checks, after the declared ones, and what a launch needs to know of the layouts. Override where there is any.

        Raises:
            KernelArgumentError: through `layouts.refuse`.
        """

    @staticmethod
    def case(laid: Laid) -> Mapping[str, Any]:
        """Fields of `Params` beyond those recovered from axes, the anchor's dtype and options of the same name; these win."""
        return {}


def taken_by(function: Callable[..., Any]) -> type[Arguments] | None:
    """The `Arguments` class that a kernel's only parameter is annotated with; None for a function that spells its arguments out.

    A kernel with choices has a second parameter, `choice`, with a default.
    """
    code = getattr(function, "__code__", None)
    if code is None or code.co_varnames[1 : code.co_argcount] not in ((), ("choice",)) or not code.co_argcount or code.co_kwonlyargcount:
        return None
    annotation = function.__annotations__.get(code.co_varnames[0])
    found = getattr(function, "__globals__", {}).get(annotation) if isinstance(annotation, str) else annotation
    return found if isinstance(found, type) and issubclass(found, Arguments) else None


def _fields(cls: type[Arguments]) -> tuple[dict[str, TensorRule], dict[str, OptionRule]]:
    tensors: dict[str, TensorRule] = {}
    options: dict[str, OptionRule] = {}
    for name, annotation in inspect.get_annotations(cls).items():
        text = annotation if isinstance(annotation, str) else str(annotation)
        if "ClassVar" in text:
            continue
        if hasattr(Arguments, name):
            raise KernelDeclarationError(f"{cls.__qualname__}.{name}: `{name}` is a name of Arguments itself; call the argument otherwise")
        value = cls.__dict__.get(name, MISSING)
        if value is not MISSING:
            delattr(cls, name)
        if "Tensor" in text:
            if options:
                raise KernelDeclarationError(f"{cls.__qualname__}.{name}: tensors come before options")
            declared = tensor() if value is MISSING else value
            tensors[name] = replace(declared, optional="None" in text)
        else:
            options[name] = _option(cls, name, annotation, value)
    return tensors, options


def _option(cls: type[Arguments], name: str, annotation: Any, value: Any) -> OptionRule:
    """The option with its schema type and choices, which its annotation says."""
    if isinstance(annotation, str):
        annotation = eval(annotation, {**vars(sys.modules[cls.__module__]), "Literal": typing.Literal})
    choices = typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()
    kind = type(choices[0]) if choices else annotation
    if kind not in (float, int, bool, str):
        raise KernelDeclarationError(f"{cls.__qualname__}.{name}: an option is a float, int, bool, str or a Literal, not {annotation}")
    given = value if isinstance(value, OptionRule) else OptionRule("", value)
    return OptionRule(kind.__name__, given.default, choices, given.positive, given.least)


def _require_known(cls: type[Arguments]) -> None:
    """Raise KernelDeclarationError for a name that the declaration does not have."""
    referred = {"anchor": [cls.anchor], "returns": list(cls.returns.values())}
    for name, one in cls.tensors.items():
        referred[f"{name}: like"] = [one.like] if one.like else []
    for where, names in referred.items():
        if unknown := [name for name in names if name not in cls.tensors]:
            raise KernelDeclarationError(f"{cls.__qualname__}: {where} names {unknown[0]!r}; the tensors are {', '.join(cls.tensors)}")
    if cls.returns and any(one.mutable for one in cls.tensors.values()):
        raise KernelDeclarationError(f"{cls.__qualname__}: an op either overwrites tensors or returns new ones")


# --- code and text made from a declaration -------------------------------------------------------------------------------------------


def _names(cls: type[Arguments]) -> list[str]:
    return [*cls.tensors, *cls.options]


def _schema(cls: type[Arguments]) -> str:
    mutable = [name for name, one in cls.tensors.items() if one.mutable]
    parts = []
    for name, one in cls.tensors.items():
        alias = f"({chr(ord('a') + mutable.index(name))}!)" if one.mutable else ""
        parts.append(f"Tensor{alias}{'?' if one.optional else ''} {name}")
    if cls.options:
        parts.append("*")
    for name, each in cls.options.items():
        parts.append(f"{each.type} {name}" + ("" if each.default is MISSING else f"={each.default!r}"))
    returned = ", ".join(["Tensor"] * len(cls.returns))
    return f"({', '.join(parts)}) -> " + (returned if len(cls.returns) == 1 else f"({returned})")


def _signature(cls: type[Arguments]) -> str:
    keywords = [name if one.default is MISSING else f"{name}=default_{name}" for name, one in cls.options.items()]
    return ", ".join([*cls.tensors, *(["*"] if keywords else []), *keywords])


def _assignments(cls: type[Arguments], target: str) -> list[str]:
    return [f"{target}.{name} = {name}" for name in _names(cls)]


def _layouts(cls: type[Arguments]) -> str:
    made = {name: f"make(Layout, ({name}.shape, {name}.stride(), {name}.dtype, {name}.device))" for name in cls.tensors}
    tensors = [f"None if {name} is None else {text}" if cls.tensors[name].optional else text for name, text in made.items()]
    return "".join(f"{each}, " for each in [*tensors, *(f"self.{name}" for name in cls.options)])


def _empty_outputs(cls: type[Arguments]) -> str:
    made = [f"self.{like}.new_empty(self.{like}.shape)" for like in cls.returns.values()]
    return ", ".join(made) or "None"


def _generate(cls: type[Arguments], head: str, body: list[str], **names: Any) -> Any:
    scope = {"cls": cls, "new": object.__new__, "make": tuple.__new__, "Layout": Layout, **names}
    scope |= {f"default_{name}": one.default for name, one in cls.options.items()}
    exec("\n    ".join([f"def {head}:", *body]), scope)
    return scope[head.partition("(")[0]]
