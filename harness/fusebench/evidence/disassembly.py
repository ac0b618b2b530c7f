"""The machine code of a cubin, and its instructions counted: by class, and global accesses by width, from nvdisasm's listing.

A cubin is an ELF file whose `.text.*` sections are machine code.  Only these bytes are hashed: the file around them names source files,
compiler options and build identifiers, which differ between machines with equal code.  Counts are static: an instruction in a loop counts
once.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from ..errors import FusebenchError
from ..registry.launches.machine_code import CubinError, sections


class MachineCode(msgspec.Struct, frozen=True):
    """The machine code of one entry function and of the functions that it calls."""

    entry: str
    text: bytes
    """The entry's instructions first, then those of other functions by name."""
    static_shared_bytes: int

    @property
    def sha256(self) -> str:
        """SHA-256 of the instructions alone."""
        return hashlib.sha256(self.text).hexdigest()


def code_of(cubin: bytes, entry: str) -> MachineCode:
    """The code of the function `entry`.

    Raises:
        CubinError: the file is not a cubin, or lacks that function.
    """
    found = {section.name: section for section in sections(cubin)}
    wanted = f".text.{entry}"
    texts = sorted(name for name in found if name.startswith(".text."))
    if wanted not in found:
        there = ", ".join(name.removeprefix(".text.") for name in texts) or "none"
        raise CubinError(f"the cubin holds no function {entry!r}; it holds {there}")
    others = [name for name in texts if name != wanted]
    shared = found.get(f".nv.shared.{entry}")
    return MachineCode(entry, b"".join(found[name].content for name in (wanted, *others)), shared.size if shared is not None else 0)


INSTRUCTION_BYTES = 16
"""Bytes of an instruction on every architecture since Volta."""
TIMEOUT_S = 120.0
"""Seconds; a batch of a hundred kernels takes one."""


class DisassemblyError(FusebenchError):
    """The disassembler failed, or its listing does not cover every byte."""


class Instructions(msgspec.Struct, frozen=True, kw_only=True):
    """Instructions of one kernel by class; classes that are not listed here are in `total` only.  Widths are bytes per thread."""

    total: int
    """All instructions, without the padding after the last one."""
    global_loads: dict[int, int] = {}
    """Width -> count; asynchronous copies to shared memory and generic loads included."""
    global_stores: dict[int, int] = {}
    local_loads: int = 0
    local_stores: int = 0
    shared_loads: int = 0
    shared_stores: int = 0
    atomics: int = 0
    bulk_copies: int = 0
    """Copies by the tensor memory accelerator."""
    barriers: int = 0
    shuffles: int = 0
    special_functions: int = 0
    """Reciprocals, roots, exponentials, sines, tanh."""
    branches: int = 0
    tensor_core: int = 0

    @property
    def local(self) -> int:
        return self.local_loads + self.local_stores


CLASSES = {
    "local_loads": ("LDL",),
    "local_stores": ("STL",),
    "shared_loads": ("LDS", "LDSM"),
    "shared_stores": ("STS", "STSM"),
    "atomics": ("ATOM", "ATOMG", "ATOMS", "RED", "REDG", "REDS", "SUATOM", "SURED"),
    "bulk_copies": ("UTMALDG", "UTMASTG", "UTMAREDG", "UBLKCP", "UBLKRED"),
    "barriers": ("BAR", "SYNCS", "UCGABAR_ARV", "UCGABAR_WAIT"),
    "shuffles": ("SHFL", "REDUX", "CREDUX"),
    "special_functions": ("MUFU",),
    "branches": ("BRA", "BRX", "JMP", "JMX", "CALL", "BRXU", "JMXU"),
    "tensor_core": ("HMMA", "IMMA", "DMMA", "QMMA", "OMMA", "HGMMA", "QGMMA", "IGMMA", "UTCHMMA", "UTCQMMA", "UTCIMMA", "UTCOMMA"),
}
"""Class -> its opcodes, from the instruction set tables of NVIDIA's "CUDA Binary Utilities", Ampere to Blackwell."""
_CLASS_OF = {opcode: name for name, opcodes in CLASSES.items() for opcode in opcodes}
_GLOBAL_LOADS = frozenset({"LDG", "LD", "LDGSTS"})
_GLOBAL_STORES = frozenset({"STG", "ST"})
_WIDTHS = {"256": 32, "128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
"""Modifiers that give the bytes per thread; without one it is 4."""
_LINE = re.compile(r"/\*(?P<at>[0-9a-f]{4,})\*/\s+(?:@!?U?P[0-9T]+\s+)?(?P<opcode>[A-Z][A-Z0-9_]*(?:\.[A-Za-z0-9_]+)*)(?P<operands>[^;]*);")


def parse(listing: str) -> list[tuple[int, str, str]]:
    """(address, opcode with modifiers, operands) of every instruction of a listing, without predicates."""
    return [(int(match["at"], 16), match["opcode"], match["operands"].strip()) for match in _LINE.finditer(listing)]


def count(instructions: Iterable[tuple[int, str, str]]) -> Instructions:
    """Counts by class, without the padding (a jump to itself, then NOPs) after a function's last instruction."""
    kept = list(_without_padding(instructions))
    classes: Counter[str] = Counter()
    loads: Counter[int] = Counter()
    stores: Counter[int] = Counter()
    for full in kept:
        opcode, *modifiers = full.split(".")
        if opcode in _GLOBAL_LOADS:
            loads[_width(modifiers)] += 1
        elif opcode in _GLOBAL_STORES:
            stores[_width(modifiers)] += 1
        elif opcode in _CLASS_OF:
            classes[_CLASS_OF[opcode]] += 1
    return Instructions(
        total=len(kept), global_loads=widest_first(loads), global_stores=widest_first(stores), **{name: classes[name] for name in CLASSES}
    )


def widest_first(counts: Counter[int]) -> dict[int, int]:
    """By width, from the widest."""
    return dict(sorted(counts.items(), reverse=True))


def _width(modifiers: Sequence[str]) -> int:
    return next((_WIDTHS[modifier] for modifier in modifiers if modifier in _WIDTHS), 4)


def _without_padding(instructions: Iterable[tuple[int, str, str]]) -> Iterator[str]:
    """The opcodes.  NOPs before the end are instructions: newer schedulers insert them."""
    ended = False
    for at, opcode, operands in instructions:
        ended = (ended and opcode == "NOP") or (opcode == "BRA" and operands == f"{at:#x}")
        if not ended:
            yield opcode


def disassemble(texts: Sequence[bytes], dialect: str, nvdisasm: Path) -> list[Instructions]:
    """Count the instructions of several kernels in one run of nvdisasm, because its start takes longer than the work.

    Args:
        texts: machine code, as in `MachineCode.text`.
        dialect: as in `Target.disassembly`.

    Raises:
        DisassemblyError: nvdisasm fails, or leaves out an instruction.
    """
    if not texts:
        return []
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(b"".join(texts))
        file.flush()
        command = [str(nvdisasm), "--binary", dialect, "--no-dataflow", file.name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            raise DisassemblyError(f"{nvdisasm} could not be run: {error}; install triton again, whose package holds it") from error
    lines = parse(done.stdout)
    size = sum(map(len, texts))
    if done.returncode != 0 or [at for at, *_ in lines] != list(range(0, size, INSTRUCTION_BYTES)):
        said = " ".join((done.stderr or done.stdout[-200:]).split())[:400]
        raise DisassemblyError(
            f"{nvdisasm} (exit code {done.returncode}) listed {len(lines)} of {size // INSTRUCTION_BYTES} {dialect} instructions: {said}"
        )
    found, start = [], 0
    for text in texts:
        first, last = start // INSTRUCTION_BYTES, (start + len(text)) // INSTRUCTION_BYTES
        found.append(count(lines[first:last]))
        start += len(text)
    return found
