"""`@kernel`: the one declaration that a kernel author writes."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import KernelDeclarationError
from ..schema import Bitwise, Close, Contract, KernelId, Language, Role
from ..schema.kernels import CHOICE_MARK
from .arguments import taken_by
from .kernel import Kernel, refused_contract
from .part import Part
from .recording import record


def kernel(
    op: str,
    name: str,
    *,
    version: int,
    role: str,
    language: str,
    contract: Contract | None = None,
    requires: tuple[str, ...] = (),
    note: str = "",
    replay: bool = False,
    covers: Part | None = None,
    install: str = "",
    choices: Mapping[str, Any] | None = None,
    compile: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], Kernel]:
    """Declare the decorated function as the kernel `op/name@version`.

    The function takes the op's declared arguments as one object (`def fused(call: Arguments)`), or spelled out by the names of the
    schema.  For an in-place op a fused kernel overwrites its arguments and returns None; any other kernel may do that too, or return
    new tensors, one per output.

    Args:
        op: name of the op, which is the folder's name.
        name: lower-case identifier, without the version.
        version: 1 or more; a released version is never changed in place.
        role: split, fused, compiled or peer.
        language: torch, triton or cuda.
        contract: numerical promise; `Close()` (1.5 x the split chain's error) unless given. The op caps the factor (`Op.largest_factor`).
        requires: importable modules the kernel needs; while one is absent the kernel is listed as not runnable.
        note: one line for `list kernels`.
        replay: repeat the launches of an earlier call of the same layouts without running the function again; `launches.replay` lists the
            conditions.
        covers: the part of the op that a peer computes, if not all of it. The part's own reference checks it, and its time is never
            compared with a whole kernel's. It takes the op's arguments and returns (or overwrites) the part's outputs.
        install: argument of `pip install` for a missing module of `requires`.
        choices: tile choices to be measured by `fusebench tune`, each a label and the value that the function gets as `choice` (a second
            parameter, whose default is the kernel as declared). The choice `double` of `fused@2` is the kernel `fused__double@2`: checked,
            timed and dispatched like any other, but selected only by name or by a dispatch table.
        compile: Inductor's options, as `torch.compile` takes them: the kernel is torch.compile of the function. Only for role compiled;
            without it the function compiles itself. A choice with an attribute `options` adds those.

    Raises:
        KernelDeclarationError: a value outside the accepted ones.
    """
    for key, value, kinds in (("role", role, Role), ("language", language, Language)):
        if value not in [str(kind) for kind in kinds]:
            known = ", ".join(map(str, kinds))
            raise KernelDeclarationError(f"@kernel({op!r}, {name!r}, version={version!r}): found {key}={value!r}, expected one of {known}")
    declared_role, declared_language = Role(role), Language(language)
    try:
        kernel_id = KernelId.parse(f"{op}/{name}@{version}")
    except ValueError as error:
        raise KernelDeclarationError(f"@kernel({op!r}, {name!r}, version={version!r}): {error}") from error

    if kernel_id.choice or not all(re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", label) for label in choices or ()):
        raise KernelDeclarationError(
            f"@kernel({op!r}, {name!r}, version={version!r}): found the choices {list(choices or ())}, expected labels of lower-case "
            f"letters and digits with `_` between; `{CHOICE_MARK}` stands between a kernel's name and such a label, and in no name"
        )

    if covers is not None and (declared_role is not Role.PEER or isinstance(contract, Bitwise)):
        found = f"role {role!r}" if declared_role is not Role.PEER else f"contract {contract}"
        raise KernelDeclarationError(
            f"kernel {kernel_id} covers a part of its op ({covers.covers}) with {found}; only a peer with a `close` contract may"
        )

    if compile is not None and declared_role is not Role.COMPILED:
        raise KernelDeclarationError(f"kernel {kernel_id}: found compile= with role {role!r}, expected role 'compiled'")

    if refused := refused_contract(kernel_id, contract if contract is not None else Close(), None):
        raise KernelDeclarationError(refused)

    def decorate(function: Callable[..., Any]) -> Kernel:
        if choices and (taken_by(function) is None or "choice" not in inspect.signature(function).parameters):
            raise KernelDeclarationError(f"kernel {kernel_id} has choices, so its function takes `(call: Arguments, choice=...)`")
        made = functools.partial(
            Kernel,
            function,
            role=declared_role,
            language=declared_language,
            contract=contract if contract is not None else Close(),
            requires=requires,
            replay=replay,
            part=covers,
            install=install,
            compile=compile,
        )
        declared = made(kernel_id, note=note)
        record(declared)
        for label, choice in (choices or {}).items():
            choice_id = KernelId(op, f"{name}{CHOICE_MARK}{label}", version)
            record(made(choice_id, note=f"{name}@{version} with choice {choice}", choice_of=declared, choice=choice))
        return declared

    return decorate
