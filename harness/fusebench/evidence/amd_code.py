"""From a recorded Triton specialisation to AMD machine code and its figures, read from the assembly that LLVM writes.  Needs no GPU.

Registers, spilled registers, scratch and local data share stand in the assembly's metadata (`amdhsa.kernels`, "Code Object V3 Metadata" in
LLVM's "User Guide for AMDGPU Backend"); spilled bytes in LLVM's remarks on the instructions that spill.  Counts are static, as for NVIDIA.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..registry.launches.machine_code import sections
from .amd_targets import AmdTarget
from .compiling import CompileError, compiler_words
from .disassembly import Instructions, widest_first
from .recording import Specialisation
from .records import AmdRegisters, Code

_INSTRUCTION = re.compile(r"^\t((?:[sv]|ds|global|flat|buffer|scratch)_[a-z0-9_]+)", re.MULTILINE)
_CODE_BYTES = re.compile(r"^; codeLenInByte = (\d+)", re.MULTILINE)
_SPILL = re.compile(r"; (\d+)-byte Folded (Spill|Reload)$", re.MULTILINE)
_CLASSES = {
    kind: re.compile(pattern)
    for kind, pattern in {
        "global_loads": "(global|flat|buffer)_load_",
        "global_stores": "(global|flat|buffer)_store_",
        "atomics": "((global|flat|buffer)_atomic_|ds_(?!read|write|.*permute|swizzle|nop))",
        "local_loads": "scratch_load_",
        "local_stores": "scratch_store_",
        "shared_loads": "ds_read",
        "shared_stores": "ds_write",
        "shuffles": "(ds_b?permute_|ds_swizzle_|v_permlane|v_.*_dpp$)",
        "special_functions": "v_(rcp|rsq|sqrt|exp|log|sin|cos)_",
        "barriers": "s_barrier",
        "branches": "s_(branch|cbranch|setpc|swappc|call)",
        "tensor_core": "v_s?mfmac?_",
    }.items()
}
"""By field of `Instructions`: the names of its instructions, from AMD's "CDNA 3" and "CDNA 4 Instruction Set Architecture"."""
_WIDTHS = (("dwordx4", 16), ("dwordx3", 12), ("dwordx2", 8), ("dword", 4), ("short", 2), ("byte", 1))
"""Parts of the names of global loads and stores, the longest first, and the bytes per thread."""


def compile_for_amd(specialisation: Specialisation, target: AmdTarget, compiler: str) -> Code:
    """Compile for `target`.

    Args:
        compiler: its versions, as in `Toolchain.compiler`.

    Raises:
        CompileError: the compiler refuses (with its words), or the assembly lacks a figure.
    """
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import compile as triton_compile

    knobs.compilation.always_compile = True
    try:
        made: Any = triton_compile(
            specialisation.source, target=GPUTarget("hip", target.name, target.wave), options=dict(specialisation.options or {})
        )
    except Exception as error:
        raise CompileError(f"{specialisation.entry} does not compile for {target.name}: {compiler_words(error)}") from error
    text = next(section.content for section in sections(made.asm["hsaco"]) if section.name == ".text")
    return read_assembly(
        made.asm["amdgcn"],
        made.metadata.name,
        target,
        compiler=compiler,
        sha256=hashlib.sha256(text).hexdigest(),
        threads=made.metadata.num_warps * target.wave,
        dynamic_shared=made.metadata.shared,
    )


def read_assembly(assembly: str, entry: str, target: AmdTarget, *, compiler: str, sha256: str, threads: int, dynamic_shared: int) -> Code:
    """The figures of the kernel `entry`; instructions, spilled bytes and size include the functions that it calls.

    Raises:
        CompileError: the assembly is for another target, or lacks a figure.
    """

    def figure(name: str) -> int:
        found = re.search(rf"^ +(?:- )?\.{name}: +(\d+)$", metadata, re.MULTILINE)
        if found is None:
            raise CompileError(f"the assembly of {entry} does not state .{name} in its metadata; expected it below amdhsa.kernels")
        return int(found[1])

    code, _, metadata = assembly.partition("amdhsa.kernels:")
    made_for = re.search(r"^amdhsa\.target: +\S*?(gfx\w+)", metadata, re.MULTILINE)
    if made_for is None or made_for[1] != target.name:
        raise CompileError(f"the assembly of {entry} is for {made_for[1] if made_for else 'no target'}; expected {target.name}")
    spilled = Counter[str]()
    for size, kind in _SPILL.findall(code):
        spilled[kind] += int(size)
    return Code(
        entry=entry,
        compiler=compiler,
        sha256=sha256,
        size=sum(map(int, _CODE_BYTES.findall(code))),
        registers=figure("vgpr_count"),
        stack=figure("private_segment_fixed_size"),
        spill_stores=spilled["Spill"],
        spill_loads=spilled["Reload"],
        static_shared=figure("group_segment_fixed_size"),
        block_barriers=1 if threads > figure("wavefront_size") else 0,
        dynamic_shared=dynamic_shared,
        threads=threads,
        instructions=count(_INSTRUCTION.findall(code)),
        amd=AmdRegisters(
            accumulation=figure("agpr_count"),
            scalar=figure("sgpr_count"),
            spilled_vector=figure("vgpr_spill_count"),
            spilled_scalar=figure("sgpr_spill_count"),
        ),
    )


def count(names: Iterable[str]) -> Instructions:
    """Counts of instructions by class, in the words of NVIDIA's: LDS is shared memory, scratch is local memory."""
    classes: Counter[str] = Counter()
    loads: Counter[int] = Counter()
    stores: Counter[int] = Counter()
    total = 0
    for name in names:
        total += 1
        kind = next((kind for kind, pattern in _CLASSES.items() if pattern.match(name)), "")
        if kind in ("global_loads", "global_stores"):
            (loads if kind == "global_loads" else stores)[_width(name)] += 1
        elif kind:
            classes[kind] += 1
    return Instructions(total=total, global_loads=widest_first(loads), global_stores=widest_first(stores), **classes)


def _width(name: str) -> int:
    return next((width for part, width in _WIDTHS if part in name), 4)
