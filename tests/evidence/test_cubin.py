"""What is read of a cubin: the instructions, whatever lies around them."""

from __future__ import annotations

import struct

import pytest

from fusebench.evidence.compiling import CompileError, assembler_figures
from fusebench.evidence.disassembly import code_of
from fusebench.registry.launches.machine_code import CubinError, sections


def elf(contents: dict[str, bytes], reserved: dict[str, int] | None = None) -> bytes:
    """An ELF file with these sections, and with these that have a size and no bytes."""
    names = [*contents, *(reserved or {}), ".shstrtab"]
    table = b"\0" + b"\0".join(name.encode() for name in names) + b"\0"
    body, headers, place = b"", [], 64
    for name in names:
        held = table if name == ".shstrtab" else contents.get(name)
        size = len(held) if held is not None else (reserved or {})[name]
        headers.append(struct.pack("<IIQQQQIIQQ", table.index(name.encode()), 1 if held is not None else 8, 0, 0, place, size, 0, 0, 1, 0))
        body += held or b""
        place += len(held or b"")
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 190, 1, 0, 0, place, 0, 64, 0, 0, 64, len(names), len(names) - 1)
    return header + body + b"".join(headers)


TEXT = bytes(range(32))


def test_only_instructions_are_hashed() -> None:
    one = code_of(elf({".text.k": TEXT, ".debug_line": b"/one/kernel.py"}), "k")
    other = code_of(elf({".debug_line": b"/somewhere/else.py, at another time", ".text.k": TEXT}), "k")
    assert one.sha256 == other.sha256
    assert code_of(elf({".text.k": TEXT[::-1]}), "k").sha256 != one.sha256


def test_functions_that_the_entry_calls_are_part_of_its_code() -> None:
    assert code_of(elf({".text.helper": b"h" * 16, ".text.k": TEXT}), "k").text == TEXT + b"h" * 16


def test_shared_memory_has_a_size_and_no_bytes() -> None:
    assert code_of(elf({".text.k": TEXT}, {".nv.shared.k": 1152}), "k").static_shared_bytes == 1152
    assert code_of(elf({".text.k": TEXT}), "k").static_shared_bytes == 0


def test_another_function_is_refused_by_name() -> None:
    with pytest.raises(CubinError, match="no function 'k'; it holds other"):
        code_of(elf({".text.other": TEXT}), "k")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04" * 20, elf({".text.k": TEXT})[:100], elf({".text.k": TEXT})[:-70]])
def test_what_is_no_whole_cubin_is_refused(content: bytes) -> None:
    with pytest.raises(CubinError, match="cubin"):
        sections(content)


LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_other' for 'sm_90a'
ptxas info    : Function properties for _other
    8 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers
ptxas info    : Compiling entry function '_unit_sum' for 'sm_90a'
ptxas info    : Function properties for _unit_sum
    104 bytes stack frame, 92 bytes spill stores, 96 bytes spill loads
ptxas info    : Used 24 registers, used 1 barriers, 104 bytes cumulative stack size
"""


def test_the_assemblers_figures_are_those_of_the_entry() -> None:
    assert assembler_figures(LOG, "_unit_sum") == (24, 104, 92, 96, 1)


def test_an_assembler_that_says_nothing_is_an_error_not_a_zero() -> None:
    with pytest.raises(CompileError, match="did not say how many registers unit_sum takes"):
        assembler_figures("ptxas info    : 0 bytes gmem", "unit_sum")
