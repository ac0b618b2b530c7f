"""One guarded call of a kernel: placed inputs, poison, and all checks that need no reference."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..errors import KernelDeclarationError
from ..registry.kernel import Kernel
from ..registry.op import Buffers, Op
from ..schema import Role
from .memory import ALIGNMENT, Placed, place
from .metrics import position
from .poison import poisoned, unwritten

_MOST_LEAD = 64
"""Alignment units of random lead before each buffer, so that no two calls see the same relative addresses (16 KiB)."""


@dataclass
class Execution:
    """The result of one call.  `outputs` is empty if `faults` says why they cannot be compared."""

    outputs: tuple[torch.Tensor, ...] = ()
    faults: list[str] = field(default_factory=list)


class _MalformedError(Exception):
    """The kernel's return value does not contain the op's outputs."""


def run_plain(kernel: Kernel, op: Op, params: Any, buffers: Buffers) -> tuple[torch.Tensor, ...]:
    """Outputs of a trusted kernel (split chain, bitwise target) on copies of `buffers`, without guards."""
    copies = {name: buffer.clone() for name, buffer in buffers.items()}
    with _quiet_numpy():
        outputs = op.apply(kernel, (), op.arguments(params, copies))
    return outputs if isinstance(outputs, tuple) else _as_tuple(outputs)


def place_at_random(buffers: Buffers, device: torch.device, rng: random.Random) -> Placed:
    """Guarded copies of `buffers`, each after a random lead."""
    return place(buffers, device=device, lead_bytes=lambda: ALIGNMENT * rng.randrange(_MOST_LEAD))


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

    def call(**keywords: Any) -> tuple[torch.Tensor, ...] | None:
        poison = poisoned(expected, intercept=intercept and kernel.role is not Role.COMPILED)
        with poison, _quiet_numpy():
            returned = kernel(**keywords)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        if op.in_place and returned is None:
            return None
        outputs = _as_tuple(returned)
        _require_form(names, outputs, expected)
        if op.in_place:
            # A kernel that returns new tensors must not write to its arguments.  One that returns an argument has overwritten it, which
            # the op allows.
            overwritten = [target for target, output in zip(targets, outputs, strict=True) if _same_memory(target, output)]
            early.extend(placed.violations(overwritten))
        return outputs

    try:
        outputs = op.apply(call, (), arguments)
    except _MalformedError as error:
        execution.faults = [str(error), *placed.violations(targets)]
        return execution
    execution.outputs = outputs
    execution.faults = list(dict.fromkeys([*early, *placed.violations(targets)]))
    if not op.in_place:
        execution.faults += _memory_faults(names, outputs, placed)
    return execution


def shares_memory(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether both tensors lie in one storage."""
    return bool(first.numel() and second.numel() and first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr())


def _quiet_numpy() -> np.errstate:
    """Triton's interpreter computes with NumPy, which warns about the NaN and Inf that a check plants on purpose."""
    return np.errstate(all="ignore")


def _as_tuple(returned: Any) -> tuple[torch.Tensor, ...]:
    if isinstance(returned, torch.Tensor):
        return (returned,)
    if isinstance(returned, tuple | list) and all(isinstance(output, torch.Tensor) for output in returned):
        return tuple(returned)
    raise _MalformedError(f"returned {type(returned).__name__}, expected one tensor per output")


def _require_form(names: Sequence[str], outputs: tuple[torch.Tensor, ...], expected: Sequence[torch.Tensor]) -> None:
    if len(outputs) != len(names):
        raise _MalformedError(f"returned {len(outputs)} tensors, expected {len(names)}: {', '.join(names)}")
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
        raise _MalformedError("; ".join(problems))


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
