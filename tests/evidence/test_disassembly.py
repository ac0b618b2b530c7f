"""Instructions by class, on lines that nvdisasm printed for kernels of this project."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from fusebench.device.triton_programs import tool
from fusebench.evidence.disassembly import DisassemblyError, count, disassemble, parse

SM_80 = """
        /*0000*/               @P0 BRA 0xad0 ;
        /*0010*/                   LDG.E.128 R16, [R14.64] ;
        /*0020*/              @!P0 LDG.E.128 R4, [R12.64] ;
        /*0030*/                   LDG.E.U16 R21, [R2.64] ;
        /*0040*/                   LDG.E.64.CONSTANT R2, [R2.64] ;
        /*0050*/                   BRA.DIV ~URZ, 0x2350 ;
        /*0060*/                   SHFL.BFLY PT, R2, R3, 0x8, 0x1f ;
        /*0070*/                   STS [R18], R21 ;
        /*0080*/                   MUFU.RSQ R17, R17 ;
        /*0090*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*00a0*/                   LDS.64 R18, [R18+0x80] ;
        /*00b0*/                   STG.E.128 [R14.64], R8 ;
        /*00c0*/               @P0 EXIT ;
        /*00d0*/                   LDGSTS.E.BYPASS.128 [R9], [R4.64] ;
        /*00e0*/                   EXIT ;
        /*00f0*/                   BRA 0xf0;
        /*0100*/                   NOP;
        /*0110*/                   NOP;
"""
SM_90 = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   HFMA2.MMA R3, -RZ, RZ, 0, 0 ;
        /*0020*/                   LDG.E.128.CONSTANT R32, desc[UR6][R32.64] ;
        /*0030*/              @!P5 LDG.E.128 R24, desc[UR6][R46.64+0x100] ;
        /*0040*/               @P5 BRA.U 0x1100 ;
        /*0050*/                   STSM.16.M88 [R33], R32 ;
        /*0060*/                   LDS.128 R4, [R4+UR4] ;
        /*0070*/                   STL.64 [R1+0x8], R4 ;
        /*0080*/                   LDL.LU.64 R4, [R1+0x8] ;
        /*0090*/                   STG.E.128 desc[UR6][R12.64], R16 ;
        /*00a0*/                   MUFU.RSQ R29, R29 ;
        /*00b0*/                   EXIT ;
        /*00c0*/                   BRA 0xc0;
"""
SM_100 = """
        /*0000*/                   LDCU.64 UR12, c[0x0][0x358] ;
        /*0010*/                   BRA.U UP0, 0xae0 ;
        /*0020*/                   BRA.DIV UR9, 0x2600 ;
        /*0030*/                   NOP ;
        /*0040*/                   LDG.E.64.CONSTANT R10, desc[UR6][R10.64] ;
        /*0050*/               @P1 LDG.E.128 R40, desc[UR6][R48.64] ;
        /*0060*/                   LDG.E.ENL2.256 R8, R4, desc[UR4][R2.64] ;
        /*0070*/              @!P1 BRA.U 0x11e0 ;
        /*0080*/                   STG.E.128 desc[UR6][R48.64], R36 ;
        /*0090*/                   SHFL.BFLY PT, R61, R60, 0x8, 0x1f ;
        /*00a0*/                   EXIT ;
        /*00b0*/                   BRA 0xb0;
        /*00c0*/                   NOP;
"""
SM_120 = """
        /*0000*/                   LDG.E.U16 R30, desc[UR12][R22.64] ;
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR12][R2.64] ;
        /*0020*/                   STSM.16.M88 [R34], R33 ;
        /*0030*/                   LDS.128 R8, [R10+UR4+0x100] ;
        /*0040*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0050*/                   MUFU.RSQ R23, R32 ;
        /*0060*/               @P0 EXIT ;
        /*0070*/                   STG.E.128 desc[UR12][R2.64], R12 ;
        /*0080*/                   EXIT ;
"""


def test_sm_80() -> None:
    found = count(parse(SM_80))
    assert found.total == 15
    assert (found.global_loads, found.global_stores) == ({16: 3, 8: 1, 2: 1}, {16: 1}), "a copy to shared memory loads from global memory"
    assert (found.shared_loads, found.shared_stores, found.barriers, found.shuffles) == (1, 1, 1, 1)
    assert (found.special_functions, found.branches, found.local) == (1, 2, 0)


def test_sm_90() -> None:
    found = count(parse(SM_90))
    assert found.total == 12
    assert (found.global_loads, found.global_stores) == ({16: 2}, {16: 1})
    assert (found.shared_loads, found.shared_stores) == (1, 1)
    assert (found.local_loads, found.local_stores, found.local) == (1, 1, 2)
    assert (found.special_functions, found.branches) == (1, 1)


def test_sm_100() -> None:
    found = count(parse(SM_100))
    assert found.total == 11, "a NOP before the end is an instruction, those behind it are padding"
    assert found.global_loads == {32: 1, 16: 1, 8: 1}
    assert (found.branches, found.shuffles) == (3, 1)


def test_sm_120() -> None:
    found = count(parse(SM_120))
    assert found.total == 9
    assert (found.global_loads, found.global_stores) == ({16: 1, 2: 1}, {16: 1})
    assert (found.shared_loads, found.shared_stores, found.barriers, found.special_functions) == (1, 1, 1, 1)


def test_a_branch_to_elsewhere_is_no_padding() -> None:
    assert count(parse("/*0000*/ BRA 0x10 ;\n/*0010*/ NOP ;\n/*0020*/ EXIT ;")).total == 3


def test_what_nvdisasm_cannot_read_is_an_error_not_a_count() -> None:
    """All ones are no instruction; a listing that leaves bytes out would undercount."""
    with pytest.raises(DisassemblyError, match="SM90a instructions"):
        disassemble([struct.pack("<QQ", 2**64 - 1, 2**64 - 1) * 4], "SM90a", tool("nvdisasm"))


def test_a_missing_disassembler_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DisassemblyError, match="could not be run"):
        disassemble([bytes(16)], "SM90a", tmp_path / "nvdisasm")


def test_nothing_needs_no_disassembler(tmp_path: Path) -> None:
    assert disassemble([], "SM90a", tmp_path / "nvdisasm") == []
