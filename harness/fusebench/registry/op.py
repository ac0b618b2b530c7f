"""An op: its parameters, arguments, inputs, float64 reference, byte count and FLOP count.

An op's `op.py` holds one subclass of `Op` marked with `@define_op`. It must not import torch at module level, so that suites can be
validated and cases listed without it; methods that compute import torch inside.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from ..errors import KernelDeclarationError
from ..schema.dispatch import DispatchKey
from ..toml_errors import Refusal, refusal_of
from .arguments import Arguments as _Arguments
from .declared import CaseFacts, OpDeclaration, takes_lists
from .dispatching.keys import key_of
from .recording import record
from .signature import argument_names

if TYPE_CHECKING:
    import random

    import torch

Buffers = Mapping[str, "torch.Tensor"]
"""Named contiguous tensors holding an op's input values, one per allocation; the harness places and guards each."""
Supports = Callable[[Any], "bool | str"]
"""True when the kernel takes the Params; a string is the reason why it does not."""

SHORT_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
LARGE_ROWS = {"bfloat16": 1e14, "float16": 1e3, "float32": 1e14}
"""Largest magnitude of rows whose squares are summed in float32: outlier channels are 550 times larger, and 8192 squares of those stay
below float32's 3.4e38.  Beyond it the sum is Inf in every implementation.  Float16 is clamped to 65504, which 1e3 reaches."""


class Op(ABC):
    """A computation with a fixed mathematical definition.  Subclass, fill in, and mark with `@define_op`."""

    name: ClassVar[str]
    """Must equal the folder's name."""

    Params: ClassVar[type[msgspec.Struct]]
    """Frozen msgspec struct of a case's parameters; refuses unknown keys and impossible combinations (ValueError)."""

    Arguments: ClassVar[type[_Arguments] | None] = None
    """The arguments of a call, declared once; `schema`, `outputs`, `in_place`, `fake` and `params_of` then follow from it."""

    schema: ClassVar[str]
    """Signature of every kernel of this op in torch's schema language, such as `(Tensor(a!) q, *, float eps=1e-06) -> ()`. An op that
    declares no `Arguments` writes it out."""

    outputs: ClassVar[tuple[str, ...]]
    """Names of the outputs. Those of an in-place op are the overwritten arguments; an optional one that a call does not give is no output
    of that call (see `outputs_of`)."""

    in_place: ClassVar[bool] = False

    split_reference: ClassVar[str] = "split_torch@1"
    """`name@version` of the split kernel whose error the `close` contract is relative to; it must run on every device."""

    baselines: ClassVar[tuple[str, ...]]
    """`name@version` of the kernels that speedups are relative to; the first that runs on the device is used. The default is the split
    reference."""

    dispatch_order: ClassVar[tuple[str, ...]] = ()
    """Kernels, best first, that `dispatch` tries within the preferred role where no table decides: `name` for the newest version of each
    that is not listed alone, as `name@version`.  A version that no GPU has run yet stands behind one that was measured."""

    dispatch_sizes: ClassVar[tuple[str, ...] | None] = None
    """Fields or properties of Params that a dispatch table compares by their ratio. The default is `rows` (the product of `token_fields`)
    and every other whole number."""

    dispatch_kinds: ClassVar[tuple[str, ...] | None] = None
    """Fields of Params that must be equal between a call and an entry of a dispatch table. The default is every field but whole numbers and
    floats."""

    dispatch_traits: ClassVar[tuple[str, ...]] = ()
    """Fields or properties of Params, true or false, that change what a kernel does for a row, such as `unaligned`: rows that do not start
    on whole vectors. A call and an entry of a dispatch table that differ in one are far apart."""

    compiled: ClassVar[Mapping[str, Any] | None] = None
    """Inductor's options of the default kernel `compiled@1`, which is torch.compile of the split reference. None for no such kernel; an op
    that declares `Arguments` has it unless it says None."""

    largest_factor: ClassVar[float] = 2.0
    """Largest factor of `Close` that a kernel may promise; a declaration above it is refused.  At 2 the error of truncation fits."""

    parts: ClassVar[tuple[str, ...]] = ()
    """The parts of the op that peers may cover, each as `module:NAME` relative to op.py: `._parts:NORM`.  A kernel's own file cannot
    declare the reference that judges it."""

    reduced: ClassVar[tuple[str, ...]] = ()
    """Names of the small arguments that a row's statistics depend on, such as a gate in front of a norm: a NaN in one spoils whole rows,
    so the check plants none there."""

    token_fields: ClassVar[tuple[str, ...]] = ("batch", "tokens")
    """Fields of `Params` whose product is the number of tokens, outermost first; `shrink` reduces them where `Params` has them."""

    space: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """Values of the parameters of a random case (`fusebench suite random`), which takes each equally often: `{"hidden": [3072, 4096]}`.
    A `range` among them is one choice, and stands for each of its numbers.  None leaves a parameter out.  Words (`Literal`) and `bool`
    need no entry; the last of `token_fields` has none, since it follows from the bytes.  Any other parameter keeps its default."""

    @abstractmethod
    def buffers(self, params: Any, *, device: torch.device, generator: torch.Generator, magnitude: float = 1.0) -> Buffers:
        """Fresh random inputs on `device`: contiguous tensors of normal values with outlier channels, scaled by `magnitude`."""

    def unusual(self, params: Any, buffers: Buffers, *, generator: torch.Generator) -> Buffers:
        """`buffers` with values that models do not pass and every kernel must get right, for the accuracy gate; as they are by default.

        Positions in any order, parameters far from one, masks of any pattern: timed calls keep the values of `buffers`, which decide their
        access pattern.  Shapes, dtypes and strides must stay.  `generator` is of the buffers' device.
        """
        return buffers

    def magnitudes(self, params: Any) -> tuple[float, ...]:
        """Scales of the inputs of a check, 1 first; each is judged by itself, because absolute errors grow with them.

        At 1e-3 the epsilon of a norm matters.  At 1e3 a sum of squares overflows in 16 bits; an op that stays finite beyond it says how
        far, and clamps and overflows show up to there.
        """
        return (1.0, 1e-3, 1e3)

    def variant(self, params: Any, rng: random.Random) -> Any | None:
        """The case with another option than models pass, or None: by default another `eps`, where Params has one.

        From 1e-5 to 1e-2, at least twice or at most half the case's own: on inputs of magnitude 1e-3 each decides the result.
        """
        own = getattr(params, "eps", None)
        if not isinstance(own, float):
            return None
        drawn = [float(f"{10 ** rng.uniform(-5, -2):.2e}") for _ in range(8)]
        return msgspec.structs.replace(params, eps=next((eps for eps in drawn if not 0.5 < eps / own < 2.0), 4 * own))

    def arguments(self, params: Any, buffers: Buffers) -> Mapping[str, Any]:
        """A kernel's arguments by name: tensors from `views`, options from the fields of `params` with the same name."""
        declared = self._declared("arguments")
        views = self.views(params, buffers)
        made = {name: views.get(name) for name in declared.tensors}
        return made | {name: getattr(params, name, one.default) for name, one in declared.options.items()}

    def views(self, params: Any, buffers: Buffers) -> Mapping[str, Any]:
        """The tensor arguments as views of `buffers`, by name: strides and packing are made here. A name that is absent is None."""
        return buffers

    @abstractmethod
    def reference(self, params: Any, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The outputs in float64, computed from the rounded inputs, without touching `arguments`."""

    def params_of(self, *args: Any, **kwargs: Any) -> Any:
        """The case that a call's arguments amount to, as Params.

        Raises:
            KernelArgumentError: arguments that no kernel may take.
        """
        return self._declared("params_of")(*args, **kwargs).params(self.Params)

    @abstractmethod
    def minimum_bytes(self, params: Any) -> int:
        """Bytes that any implementation must move: each input read once, each output written once."""

    def bytes_written(self, params: Any) -> int:
        """The part of `minimum_bytes` that is written: all outputs.  The rest is read.  Half of them for an op that does not say."""
        return self.minimum_bytes(params) // 2

    @abstractmethod
    def flops(self, params: Any) -> int:
        """Floating-point operations of the formula; a fused multiply-add counts two."""

    def shape(self, params: Any) -> str:
        """A short human label, such as `4096x3072 bf16`: by default the anchor's sizes and the dtype."""
        declared = self._declared("shape")
        fields = [declared.axes[symbol].field for symbol in declared.tensors[declared.anchor].shape or () if symbol in declared.axes]
        sizes = [str(getattr(params, name)) for name in fields if name != "batch" or params.batch > 1]
        dtype = getattr(params, "dtype", "")
        return " ".join(filter(None, ("x".join(sizes), SHORT_DTYPES.get(dtype, dtype))))

    def dispatch_key(self, params: Any) -> DispatchKey | None:
        """The part of `params` that decides which kernel is fastest, for dispatch tables; None if a size of a traced call is unknown."""
        return key_of(params, self.token_fields, self.dispatch_sizes, self.dispatch_kinds, self.dispatch_traits)

    def shrink(self, params: Any, rows: int) -> Any:
        """The same case with at most `rows` tokens, for interpreters."""
        changes, left = {}, rows
        for name in self.token_fields:
            if name in self.Params.__struct_fields__:
                changes[name] = min(getattr(params, name), max(1, left))
                left //= changes[name]
        return msgspec.structs.replace(params, **changes)

    def outputs_of(self, params: Any) -> tuple[str, ...]:
        """Names of the outputs of a case: all of `outputs`, unless an in-place op's optional argument is left out."""
        return self.outputs

    def device_of(self, *args: Any, **kwargs: Any) -> str:
        """`cpu` or `cuda`: where the call's first tensor lives."""
        tensor = args[0] if args else next(iter(kwargs.values()))
        return str(tensor.device.type)

    def fake(self, *args: Any, **kwargs: Any) -> Any:
        """Empty outputs of a call's shapes and dtypes, without computing; None for an in-place op."""
        if self.Arguments is not None:
            return self.Arguments(*args, **kwargs).allocate()
        if not self.in_place:
            raise KernelDeclarationError(f"op {self.name!r} returns new tensors, so its op.py must declare `Arguments` or define `fake`")
        return None

    def fix_widths(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Make the widths of a traced call's rows constants; see `Arguments.fix_widths`."""
        if self.Arguments is not None:
            self.Arguments(*args, **kwargs).fix_widths()

    def apply(self, kernel: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run `kernel` with the op's semantics: tensors that a kernel of an in-place op returns are copied into its arguments.

        Returns the kernel's outputs; for an in-place op the overwritten arguments that the call gives, as a tuple.
        """
        returned = kernel(*args, **kwargs)
        return self.handed_back(returned, args, kwargs) if self.in_place else returned

    def handed_back(self, returned: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The overwritten arguments of a call of an in-place op, after new tensors that its kernel `returned` are copied into them."""
        given = len(args)
        found = [args[place] if place < given else kwargs[name] for place, name in self.output_places]
        targets = tuple([target for target in found if target is not None])
        if returned is not None:
            values = returned if isinstance(returned, tuple | list) else (returned,)
            for target, value in zip(targets, values, strict=True):
                target.copy_(value)
        return targets

    @functools.cached_property
    def output_places(self) -> tuple[tuple[int, str], ...]:
        """Place and name among the call's arguments of each output of an in-place op."""
        names = argument_names(self.schema)
        return tuple((names.index(name), name) for name in self.outputs)

    def parse_params(self, raw: Mapping[str, Any]) -> Any:
        """`raw` as this op's Params.

        Raises:
            msgspec.ValidationError: a key or value that Params refuses; the message names the key.
        """
        return msgspec.convert(dict(raw), self.Params, strict=True)

    @property
    def declaration(self) -> OpDeclaration:
        """The op as plain data."""
        return OpDeclaration.of(self)

    @property
    def lists(self) -> tuple[str, ...]:
        """Keys of a case that take a sequence of values."""
        return tuple(field.encode_name for field in msgspec.structs.fields(self.Params) if takes_lists(field.type))

    def facts(self, raw: Mapping[str, Any]) -> CaseFacts:
        """What the op says of the case with the parameters `raw`.

        Raises:
            ValueError: a key or value that Params refuses.
        """
        return CaseFacts.of(self, raw)

    def refusal(self, raw: Mapping[str, Any]) -> Refusal | None:
        """Why the op refuses the parameters `raw`; None if it takes them.

        A case that moves no byte is refused for every op: with a size of zero, a check compares nothing and passes.
        """
        try:
            params = self.parse_params(raw)
        except ValueError as error:
            return refusal_of(error, self.Params)
        try:
            moved = int(self.minimum_bytes(params))
        except Exception:  # noqa: BLE001 - `facts` keeps what the method raised, for the commands that need its answer
            return None
        return None if moved > 0 else Refusal(f"found sizes that move {moved} bytes, expected at least 1 byte")

    def _declared(self, method: str) -> type[_Arguments]:
        if self.Arguments is None:
            raise KernelDeclarationError(f"op {self.name!r} declares no `Arguments`, so its op.py must define `{method}`")
        return self.Arguments


OpT = TypeVar("OpT", bound=type[Op])
_REQUIRED = ("name", "Params", "schema", "outputs")


def define_op(cls: OpT) -> OpT:
    """Declare `cls` as the op of its folder.

    Raises:
        KernelDeclarationError: a required attribute is missing.
    """
    declared = cls.Arguments
    if declared is not None:
        declared.op = getattr(cls, "name", cls.__name__)
        mutable = tuple(name for name, one in declared.tensors.items() if one.mutable)
        cls.schema, cls.outputs, cls.in_place = declared.schema, mutable or tuple(declared.returns), bool(mutable)
        if "compiled" not in cls.__dict__:
            cls.compiled = {}
    if not hasattr(cls, "baselines"):
        cls.baselines = (cls.split_reference,)
    missing = [attribute for attribute in _REQUIRED if not hasattr(cls, attribute)]
    if missing:
        raise KernelDeclarationError(f"op class {cls.__name__} in {cls.__module__} lacks {', '.join(missing)}")
    record(cls())
    return cls
