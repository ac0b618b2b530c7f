"""From a recorded specialisation to machine code and the assembler's figures.  Needs no GPU."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any, NamedTuple

import msgspec

from ..errors import FusebenchError
from ..registry import nvrtc
from .recording import Specialisation
from .targets import WARP, Target


class CompileError(FusebenchError):
    """A kernel that does not compile for a target."""


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled specialisation; sizes are bytes."""

    entry: str
    """The function's name in the cubin."""
    cubin: bytes
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    block_barriers: int
    threads: int | None = None
    """Threads per block, if the compiler sets them (Triton)."""
    dynamic_shared: int | None = None


_PROPERTIES = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers(?:, used (\d+) barriers)?")


class Used(NamedTuple):
    """Resources of a function, as the assembler reports them.  Sizes are bytes."""

    registers: int
    """Per thread."""
    stack: int
    spill_stores: int
    spill_loads: int
    block_barriers: int


def compile_for(specialisation: Specialisation, target: Target) -> Compiled:
    """Compile for `target`.

    Raises:
        CompileError: the compiler refuses (with its words), or reports no registers.
    """
    log = io.StringIO()
    try:
        if specialisation.options is None:
            made = nvrtc.compile_cubin(specialisation.source, target.name, log=log)
            entry, cubin, threads, shared = specialisation.entry, bytes(made.code), None, None
        else:
            made = _compile_triton(specialisation, target, log)
            entry, cubin = made.metadata.name, made.asm["cubin"]
            threads, shared = made.metadata.num_warps * WARP, made.metadata.shared
    except Exception as error:
        raise CompileError(f"{specialisation.entry} does not compile for {target.name}: {compiler_words(error)}") from error
    used = assembler_figures(log.getvalue(), entry)
    return Compiled(
        entry=entry,
        cubin=cubin,
        registers=used.registers,
        stack=used.stack,
        spill_stores=used.spill_stores,
        spill_loads=used.spill_loads,
        block_barriers=used.block_barriers,
        threads=threads,
        dynamic_shared=shared,
    )


def assembler_figures(log: str, entry: str) -> Used:
    """The figures of `ptxas -v` for `entry`; stack and spills include the functions that it calls.

    Raises:
        CompileError: the log does not contain them.
    """
    before, found, after = log.partition(f"Compiling entry function '{entry}'")
    part = after.partition("Compiling entry function")[0]
    properties, registers = _PROPERTIES.findall(part), _REGISTERS.search(part)
    if not found or not properties or registers is None:
        said = " ".join((before + part).split())[:400]
        raise CompileError(f"the assembler did not say how many registers {entry} takes; it said: {said or 'nothing'}")
    stack, stores, loads = (sum(int(line[place]) for line in properties) for place in range(3))
    return Used(int(registers[1]), stack, stores, loads, int(registers[2] or 0))


def _compile_triton(specialisation: Specialisation, target: Target, log: io.StringIO) -> Any:
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import compile as triton_compile

    # Triton prints the assembler's log and does not keep it; it does not assemble an entry of its cache again.
    knobs.nvidia.dump_ptxas_log = True
    knobs.compilation.always_compile = True
    with contextlib.redirect_stdout(log):
        return triton_compile(
            specialisation.source, target=GPUTarget("cuda", target.capability, WARP), options=dict(specialisation.options or {})
        )


def compiler_words(error: BaseException) -> str:
    """The compiler's words on one line, without a stack; the innermost cause names the mistake."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    words = " ".join(f"{type(error).__name__}: {error}".split())
    innermost = " ".join(f"{type(causes[-1]).__name__}: {causes[-1]}".split())
    return words[:1200] if innermost in words or len(causes) == 1 else f"{words[:800]} (because of {innermost[:400]})"
