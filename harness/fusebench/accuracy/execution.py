"""One guarded call of a kernel: placed inputs, poison, and all checks that need no reference.

The call has the form of a timed one (`registry.calling`), on buffers of the same kind: a kernel cannot tell the two apart by them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..errors import KernelDeclarationError
from ..registry.calling import call_form, without_garbage_collection
from ..registry.kernel import Kernel
from ..registry.launching import interpreting
from ..registry.op import Buffers, Op
from ..schema import Language, Role
from .memory import ALIGNMENT, Placed, place, random_lead
from .metrics import position
from .poison import poisoned, unwritten


@dataclass
class Execution:
    """The result of one call.  `outputs` is empty if `faults` says why they cannot be compared."""

    outputs: tuple[torch.Tensor, ...] = ()
    faults: list[str] = field(default_factory=list)


class MalformedError(Exception):
    """The kernel's return value does not contain the op's outputs."""


def run_plain(kernel: Kernel, op: Op, params: Any, buffers: Buffers) -> tuple[torch.Tensor, ...]:
    """Outputs of a trusted kernel (split chain, bitwise target) on copies of `buffers`, without guards."""
    copies = {name: buffer.clone() for name, buffer in buffers.items()}
    with _quiet_numpy():
        outputs = op.apply(kernel, (), op.arguments(params, copies))
    return outputs if isinstance(outputs, tuple) else as_tensors(outputs)


def place_at_random(buffers: Buffers, device: torch.device, rng: random.Random, alignment: int = ALIGNMENT) -> Placed:
    """Guarded copies of `buffers`, each after a random lead, at addresses that `alignment` (bytes) divides."""
    return place(buffers, device=device, lead_bytes=lambda: random_lead(rng, alignment), alignment=alignment)


def run_guarded(kernel: Kernel, op: Op, params: Any, placed: Placed, *, expected: Sequence[torch.Tensor], intercept: bool) -> Execution:
    """Call `kernel` once on the placed inputs.

    Args:
        expected: the split chain's outputs: they give the shapes, dtypes and device to expect.
        intercept: fill memory that the kernel allocates through torch with poison.  Never done for `compiled` kernels.

    Raises:
        KernelDeclarationError: the op's `arguments` copies a buffer, which no guard would cover.
        Exception: any error of the kernel.
    """
    device = expected[0].device
    arguments = op.arguments(params, placed.buffers)
    if loose := placed.unguarded(arguments):
        raise KernelDeclarationError(
            f"op {op.name!r}: arguments() must make views of its buffers; {', '.join(loose)} has memory of its own, which no guard covers"
        )
    placed.snapshot()
    execution, early = Execution(), list[str]()
    names = op.outputs_of(params)
    targets = tuple(arguments[name] for name in names) if op.in_place else ()

    values, keywords = call_form(op, arguments)
    # Triton's interpreter writes every argument back after a launch, changed or not.
    protected = kernel.language is not Language.TRITON
    written: list[str] = []

    def call(*values: Any, **keywords: Any) -> tuple[torch.Tensor, ...] | None:
        poison = poisoned(expected, intercept=intercept and kernel.role is not Role.COMPILED)
        guard = placed.read_only(targets) if protected else nullcontext(written)
        with poison, _quiet_numpy(), without_garbage_collection(), guard as found:
            returned = kernel(*values, **keywords)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        written.extend(found)
        if op.in_place and returned is None:
            return None
        outputs = plain_outputs(names, returned, expected)
        if op.in_place:
            # A kernel that returns new tensors must not write to its arguments.  One that returns an argument has overwritten it, which
            # the op allows.
            overwritten = [target for target, output in zip(targets, outputs, strict=True) if _same_memory(target, output)]
            early.extend(placed.violations(overwritten))
        return outputs

    try:
        outputs = op.apply(call, values, keywords)
    except MalformedError as error:
        execution.faults = [str(error), *placed.violations(targets)]
        return execution
    execution.outputs = outputs
    execution.faults = list(dict.fromkeys([*early, *placed.violations(targets)]))
    # What stayed changed is described by its place; a write that was undone leaves only this.
    execution.faults += [one for one in written if not execution.faults]
    if not op.in_place:
        execution.faults += _memory_faults(names, outputs, placed)
    return execution


def run_again(kernel: Kernel, op: Op, params: Any, buffers: Buffers, placed: Placed) -> tuple[torch.Tensor, ...]:
    """Outputs of one more call at the same addresses, by the same call form, of a kernel whose guarded calls found no fault."""
    placed.refill(buffers)
    values, keywords = call_form(op, op.arguments(params, placed.buffers))
    with _quiet_numpy(), without_garbage_collection():
        return as_tensors(op.apply(kernel, values, keywords))


def shares_memory(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether both tensors lie in one storage."""
    return bool(first.numel() and second.numel() and first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr())


def _quiet_numpy() -> AbstractContextManager[None]:
    """Triton's interpreter computes with NumPy, which warns about the NaN and Inf that a check plants on purpose."""
    return np.errstate(all="ignore") if interpreting() else nullcontext()


def plain_outputs(names: Sequence[str], returned: Any, expected: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The returned tensors, one per output, of the shapes, dtypes and device of `expected`.

    They must be plain tensors with memory of their own.  A subclass or a lazy tensor may compute only when it is looked at, which is after
    the clock stopped.

    Raises:
        MalformedError: they are not.
    """
    outputs = as_tensors(returned)
    _require_form(names, outputs, expected)
    for name, output in zip(names, outputs, strict=True):
        if problem := not_plain(output):
            raise MalformedError(f"output {name!r} is {problem}; return a plain torch.Tensor whose values are computed")
    return outputs


def not_plain(output: torch.Tensor) -> str:
    """What makes `output` no plain tensor; empty if it is one."""
    if type(output) is not torch.Tensor:
        return f"a {type(output).__module__}.{type(output).__qualname__}, which is a subclass"
    found = {
        "a functional wrapper": torch._is_functional_tensor(output),
        f"of layout {output.layout}": output.layout is not torch.strided,
        "a lazy conjugate or negative": output.is_conj() or output.is_neg(),
        "part of a gradient graph (requires_grad; compute under torch.no_grad())": output.requires_grad,
    }
    return next((what for what, holds in found.items() if holds), "")


def as_tensors(returned: Any) -> tuple[torch.Tensor, ...]:
    """What a kernel returned, as one tensor per output.  Raises MalformedError if it is anything else."""
    if isinstance(returned, torch.Tensor):
        return (returned,)
    if isinstance(returned, tuple | list) and all(isinstance(output, torch.Tensor) for output in returned):
        return tuple(returned)
    raise MalformedError(f"returned {type(returned).__name__}, expected one tensor per output")


def _require_form(names: Sequence[str], outputs: tuple[torch.Tensor, ...], expected: Sequence[torch.Tensor]) -> None:
    if len(outputs) != len(names):
        raise MalformedError(f"returned {len(outputs)} tensors, expected {len(names)}: {', '.join(names)}")
    problems = [
        f"output {name!r} has {what} {found}, expected {due}"
        for name, output, like in zip(names, outputs, expected, strict=True)
        for what, found, due in (
            ("shape", tuple(output.shape), tuple(like.shape)),
            ("dtype", output.dtype, like.dtype),
            ("device", output.device, like.device),
        )
        if found != due
    ]
    if problems:
        raise MalformedError("; ".join(problems))


def _same_memory(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.data_ptr() == second.data_ptr() and first.stride() == second.stride() and first.shape == second.shape


def _memory_faults(names: Sequence[str], outputs: tuple[torch.Tensor, ...], placed: Placed) -> list[str]:
    faults = []
    for name, output in zip(names, outputs, strict=True):
        owner = placed.owner(output)
        if owner is not None:
            faults.append(f"output {name!r} is memory of input buffer {owner!r}; the op returns new tensors")
        forgotten = unwritten(output)
        if forgotten.numel():
            first = position(int(forgotten[0]), output.shape)
            faults.append(f"output {name!r}: {forgotten.numel()} elements were never written (poison found), first {first}")
    return faults
