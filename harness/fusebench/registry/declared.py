"""Declarations as plain data: everything that a command needs to know of ops, kernels and cases without executing their files.

A process that loads the files makes these values (`Op.declaration`, `Op.facts`, `Kernel.declared`, `Collection.support`). A process that
does not load them reads the same attributes from here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import msgspec
import msgspec.inspect

from ..errors import FusebenchError, KernelDeclarationError, UsageError
from ..schema import KernelId, KernelInfo, Language, Role
from ..schema.dispatch import DispatchKey
from ..toml_errors import Refusal


class OpMembers(Protocol):
    """The members of an `Op` that its plain data are made of.  op.py imports this file, so this file imports no `Op`."""

    name: ClassVar[str]
    Params: ClassVar[type[msgspec.Struct]]
    schema: ClassVar[str]
    outputs: ClassVar[tuple[str, ...]]
    in_place: ClassVar[bool]
    split_reference: ClassVar[str]
    baselines: ClassVar[tuple[str, ...]]
    dispatch_order: ClassVar[tuple[str, ...]]
    token_fields: ClassVar[tuple[str, ...]]
    space: ClassVar[Mapping[str, Sequence[Any]]]

    @property
    def lists(self) -> tuple[str, ...]: ...

    def parse_params(self, raw: Mapping[str, Any]) -> Any: ...


class OpDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """An op as its op.py declares it."""

    name: str
    file: str
    """Its op.py."""
    description: str
    """First line of the module's docstring."""
    schema: str
    outputs: tuple[str, ...]
    in_place: bool
    split_reference: str
    baselines: tuple[str, ...]
    params: dict[str, Any]
    """Keys of a case with their defaults; `required` for none."""
    types: dict[str, tuple[str, str]]
    """Type and default of each field of Params, as they are written."""
    lists: tuple[str, ...]
    """Keys that take a sequence of values."""
    dispatch_order: tuple[str, ...]
    """Kernel names that `dispatch` tries first where no table decides."""
    space: dict[str, tuple[tuple[Any, ...], ...]]
    """Values of the parameters of a random case, in groups: each group is taken equally often, and each value in it."""
    tokens: str
    """The parameter that follows from a random case's bytes; empty for none."""

    @classmethod
    def of(cls, op: OpMembers) -> OpDeclaration:
        """`op` as plain data."""
        module = sys.modules[type(op).__module__]
        return cls(
            name=op.name,
            file=module.__file__ or "",
            description=(module.__doc__ or "").strip().split("\n")[0].removeprefix(f"{op.name}: "),
            schema=op.schema,
            outputs=tuple(op.outputs),
            in_place=op.in_place,
            split_reference=op.split_reference,
            baselines=tuple(op.baselines),
            params={field.encode_name: shown_default(field) for field in msgspec.structs.fields(op.Params)},
            types=written_types(op.Params),
            lists=op.lists,
            dispatch_order=tuple(op.dispatch_order),
            space=_declared_space(op),
            tokens=op.token_fields[-1] if op.token_fields[-1:] and op.token_fields[-1] in op.Params.__struct_fields__ else "",
        )


class DeclaredKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel as its file declares it. Attributes of a `Kernel` have the same names here."""

    id: KernelId
    role: Role
    language: Language
    contract: str
    note: str
    file: str
    covers: str
    requires: tuple[str, ...]
    install: str
    absent: tuple[str, ...]
    """The modules of `requires` that are not installed."""

    @property
    def info(self) -> KernelInfo:
        """The kernel as records keep it."""
        return KernelInfo(
            id=str(self.id),
            op=self.id.op,
            name=self.id.name,
            version=self.id.version,
            role=self.role,
            language=self.language,
            contract=self.contract,
            note=self.note,
            file=self.file,
            covers=self.covers,
            requires=self.requires,
            install=self.install,
        )


class CaseFacts(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What an op says of one case."""

    params: bytes
    """The parsed parameters as JSON, defaults included: equal for cases that are the same work."""
    shape: str = ""
    """Label for readers."""
    minimum_bytes: int = 0
    bytes_written: int = 0
    flops: int = 0
    dispatch_key: DispatchKey | None = None
    """The parameters that decide which kernel is fastest; None if the op's method raised."""
    broken: dict[str, str] = {}
    """By name, why a method of the op gave no value above."""

    @classmethod
    def of(cls, op: OpMembers, raw: Mapping[str, Any]) -> CaseFacts:
        """What `op` says of the case with the parameters `raw`; its methods run here.

        Raises:
            ValueError: a key or value that the op's Params refuses.
        """
        params = op.parse_params(raw)
        broken: dict[str, str] = {}

        def asked(name: str, convert: Callable[[Any], Any], otherwise: Any) -> Any:
            try:
                return convert(getattr(op, name)(params))
            except Exception as error:  # noqa: BLE001 - a method that is still to be written concerns only the commands that need it
                said = str(error) if isinstance(error, FusebenchError) else f"{type(error).__name__}: {error}"
                broken[name] = f"op {op.name}: its method `{name}` failed on the case {dict(raw)}: {said}"
                return otherwise

        return cls(
            params=msgspec.json.encode(params, order="deterministic"),
            shape=asked("shape", str, ""),
            minimum_bytes=asked("minimum_bytes", int, 0),
            bytes_written=asked("bytes_written", int, 0),
            flops=asked("flops", int, 0),
            dispatch_key=asked("dispatch_key", lambda key: key, None),
            broken=broken,
        )

    def known(self, name: str) -> Any:
        """The value called `name`.

        Raises:
            UsageError: the op's method raised; the message says what.
        """
        if name in self.broken:
            raise UsageError(self.broken[name])
        return getattr(self, name)


class CaseSupport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the kernels of an op say of one case."""

    declined: dict[str, str] = {}
    """By id, why a kernel declines the case; one without an entry takes it."""
    part_bytes: dict[str, int] = {}
    """By id, the bytes that any implementation must move of the part that a kernel covers; kernels of the whole op have no entry."""


class ParamsRefusedError(ValueError):
    """Parameters that an op refuses."""

    def __init__(self, refusal: Refusal) -> None:
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in refusal.steps)
        super().__init__(f"{refusal.message} - at `${path}`" if path else refusal.message)
        self.refusal = refusal


class DeclaredOp:
    """An op whose file this process does not execute: its declaration, and answers on cases from the process that does."""

    def __init__(self, declaration: OpDeclaration, ask: Callable[[str, Mapping[str, Any]], CaseFacts | Refusal]) -> None:
        """`ask(op, params)`: what the op says of a case."""
        self.declaration = declaration
        self._ask = ask

    @property
    def name(self) -> str:
        return self.declaration.name

    @property
    def baselines(self) -> tuple[str, ...]:
        return self.declaration.baselines

    @property
    def split_reference(self) -> str:
        return self.declaration.split_reference

    @property
    def lists(self) -> tuple[str, ...]:
        return self.declaration.lists

    @property
    def dispatch_order(self) -> tuple[str, ...]:
        return self.declaration.dispatch_order

    def facts(self, raw: Mapping[str, Any]) -> CaseFacts:
        """What the op says of the case with the parameters `raw`.

        Raises:
            ParamsRefusedError: the op refuses the parameters.
        """
        answer = self._ask(self.name, raw)
        if isinstance(answer, Refusal):
            raise ParamsRefusedError(answer)
        return answer

    def refusal(self, raw: Mapping[str, Any]) -> Refusal | None:
        """Why the op refuses the parameters `raw`; None if it takes them."""
        answer = self._ask(self.name, raw)
        return answer if isinstance(answer, Refusal) else None


def shown_default(field: Any) -> Any:
    """The default of a field of Params as plain data; `required` for none."""
    if field.required:
        return "required"
    return None if field.default is msgspec.NODEFAULT else msgspec.to_builtins(field.default, enc_hook=repr)


def takes_lists(declared: Any) -> bool:
    """Whether the type takes a sequence of values."""
    kind = msgspec.inspect.type_info(declared)
    lists = (msgspec.inspect.ListType, msgspec.inspect.TupleType, msgspec.inspect.VarTupleType, msgspec.inspect.AnyType)
    return any(isinstance(one, lists) for one in (kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)))


def _declared_space(op: OpMembers) -> dict[str, tuple[tuple[Any, ...], ...]]:
    """`Op.space` as plain data, with the values that the types of `Params` name."""
    if unknown := set(op.space) - {field.encode_name for field in msgspec.structs.fields(op.Params)}:
        raise KernelDeclarationError(f"op {op.name}: `space` has values for {', '.join(sorted(unknown))}, which Params lacks")
    given = {name: tuple(tuple(one) if isinstance(one, range) else (one,) for one in values) for name, values in op.space.items()}
    return given | {name: values for name, values in _named_values(op.Params).items() if name not in given}


def _named_values(params: type[msgspec.Struct]) -> dict[str, tuple[tuple[Any, ...], ...]]:
    """The values of each field whose type names them all: words (`Literal`) and `bool`, each a group of its own."""
    found: dict[str, tuple[Any, ...]] = {}
    for field in msgspec.structs.fields(params):
        kind = msgspec.inspect.type_info(field.type)
        if isinstance(kind, msgspec.inspect.LiteralType):
            found[field.encode_name] = tuple(kind.values)
        elif isinstance(kind, msgspec.inspect.BoolType):
            found[field.encode_name] = (False, True)
    return {name: tuple((value,) for value in values) for name, values in found.items()}


def written_types(params: type[msgspec.Struct]) -> dict[str, tuple[str, str]]:
    """Types and defaults of the fields, as they are written: two loads of one class never hold the same type."""
    written = {name: kind for base in reversed(params.__mro__) for name, kind in vars(base).get("__annotations__", {}).items()}
    return {
        field.name: (kind if isinstance(kind := written.get(field.name), str) else _type_name(kind), repr(field.default))
        for field in msgspec.structs.fields(params)
    }


def _type_name(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)
