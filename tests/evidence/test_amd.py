"""Static evidence for AMD: registers, spills, LDS and waves of the real launches, from LLVM's assembly, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusebench.errors import UnknownNameError
from fusebench.evidence.amd_code import read_assembly
from fusebench.evidence.amd_targets import AMD_TARGETS
from fusebench.evidence.compiling import CompileError
from fusebench.evidence.occupancy import amd_occupancy
from fusebench.evidence.records import Code, KernelEvidence, StaticReport, StaticStatus, Toolchain
from fusebench.evidence.static_gate import judge
from fusebench.evidence.targets import ALL_TARGETS, target
from fusebench.report.evidence.static_table import EVIDENCE_COLUMNS, evidence_columns, evidence_rows, limited_rows
from fusebench.schema import Language, VerdictKind
from fusebench.store.static_baselines import encode_static, promote_static, read_static
from fusebench.store.tables import read_parquet

GFX942, GFX950 = AMD_TARGETS["gfx942"], AMD_TARGETS["gfx950"]
KIB = 1024

FROM_LLVM = [
    # vector registers (accumulation included), scalar registers, threads -> waves per SIMD
    (54, 46, 64, 8),
    (64, 78, 256, 8),
    (100, 76, 256, 4),
    (127, 106, 1024, 4),
    (128, 106, 1024, 4),
    (145, 106, 64, 3),
    (167, 106, 64, 3),
    (171, 18, 256, 2),
    (204, 18, 256, 2),
    (217, 106, 256, 2),
    (256, 38, 512, 2),
    (342, 106, 64, 1),
    (424, 106, 128, 1),
    (512, 18, 256, 1),
]
"""Kernels as LLVM has them: its remark `; Occupancy:` in the assembly of Triton 3.6.0 and 3.9.0, the same for gfx942 and gfx950."""


@pytest.mark.parametrize("seen", FROM_LLVM, ids=str)
@pytest.mark.parametrize("one", AMD_TARGETS.values(), ids=lambda one: one.name)
def test_occupancy_is_that_of_llvm(one: Any, seen: tuple[int, int, int, int]) -> None:
    vgprs, sgprs, threads, waves = seen
    found = amd_occupancy(one, threads=threads, vgprs=vgprs, sgprs=sgprs, shared_bytes=0)
    assert found.warps == waves * one.simds


@pytest.mark.parametrize(
    "case",
    [
        # target, threads, vector and scalar registers, LDS bytes -> resident workgroups, what limits
        ("gfx942", 256, 65, 16, 0, 7, ("vgprs",)),  # 72 registers: seven waves to a SIMD
        ("gfx942", 256, 32, 97, 0, 7, ("sgprs",)),  # 112 scalar registers
        ("gfx942", 128, 32, 16, 0, 16, ("waves", "workgroups")),
        ("gfx942", 64, 32, 16, 0, 32, ("waves", "workgroups")),  # a workgroup of one wave needs no barrier
        ("gfx942", 64, 32, 16, 4 * KIB, 16, ("lds",)),
        ("gfx950", 64, 32, 16, 4 * KIB, 32, ("waves", "workgroups", "lds")),  # 5120 bytes each, of 160 KiB
        ("gfx950", 256, 32, 16, 32 * KIB, 4, ("lds",)),  # 33 280 bytes each, so not five
        ("gfx942", 256, 32, 16, 64 * KIB, 1, ("lds",)),
        ("gfx942", 256, 32, 16, 64 * KIB + 1, 0, ("lds",)),
        ("gfx942", 1024, 129, 16, 0, 0, ("vgprs",)),  # three waves to a SIMD, and the workgroup has four
        ("gfx942", 1088, 32, 16, 0, 0, ("waves",)),
    ],
)
def test_each_resource_limits(case: tuple[str, int, int, int, int, int, tuple[str, ...]]) -> None:
    name, threads, vgprs, sgprs, shared, workgroups, limited_by = case
    found = amd_occupancy(AMD_TARGETS[name], threads=threads, vgprs=vgprs, sgprs=sgprs, shared_bytes=shared)
    assert (found.blocks, found.limited_by) == (workgroups, limited_by)
    assert found.warps == workgroups * -(-threads // 64)
    assert found.share == found.warps / 32


def test_a_workgroup_without_threads_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        amd_occupancy(GFX942, threads=0, vgprs=8, sgprs=16, shared_bytes=0)


def test_an_unknown_target_is_answered_with_all_that_there_are() -> None:
    assert list(ALL_TARGETS) == ["sm_80", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950"]
    with pytest.raises(UnknownNameError) as caught:
        target("gfx1100")
    assert all(name in str(caught.value) for name in ALL_TARGETS)


ASSEMBLY = """\
\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
k:                                      ; @k
\ts_load_dwordx2 s[2:3], s[0:1], 0x0
\tglobal_load_dwordx4 v[0:3], v[4:5], off
\tbuffer_load_ushort v6, v7, s[4:7], 0 offen
\tscratch_store_dwordx2 off, v[0:1], off offset:500 ; 8-byte Folded Spill
\tv_add_f32_dpp v1, v1, v1 row_shr:8 row_mask:0xf bank_mask:0xf
\tds_bpermute_b32 v1, v2, v3
\tds_write_b128 v1, v[0:3]
\ts_barrier
\tds_read2_b64 v[0:3], v1
\tv_rcp_f32_e32 v1, v1
\tv_mfma_f32_32x32x8_bf16_1k a[0:15], v[0:1], v[2:3], a[0:15]
\tscratch_load_dword v0, off, off offset:500 ; 4-byte Folded Reload
\tglobal_store_short_d16_hi v[4:5], v6, off
\tglobal_atomic_add_f32 v[4:5], v6, off
\ts_cbranch_execz .LBB0_2
\ts_endpgm
; codeLenInByte = 112
; Occupancy: 3
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     16
    .group_segment_fixed_size: 32
    .name:           k
    .private_segment_fixed_size: 8
    .sgpr_count:     14
    .sgpr_spill_count: 5
    .vgpr_count:     148
    .vgpr_spill_count: 3
    .wavefront_size: 64
amdhsa.target:   amdgcn-amd-amdhsa--gfx942
...
"""


def read(assembly: str) -> Code:
    return read_assembly(assembly, "k", GFX942, compiler="triton 3.9.0", sha256="", threads=256, dynamic_shared=4096)


def test_the_figures_of_an_assembly() -> None:
    code = read(ASSEMBLY)
    assert (code.registers, code.stack, code.static_shared, code.size, code.block_barriers) == (148, 8, 32, 112, 1)
    assert (code.spill_stores, code.spill_loads) == (8, 4)
    assert code.amd
    assert msgspec.to_builtins(code.amd) == {"accumulation": 16, "scalar": 14, "spilled_vector": 3, "spilled_scalar": 5}
    counts = code.instructions
    assert (counts.total, counts.global_loads, counts.global_stores) == (16, {16: 1, 2: 1}, {2: 1})
    assert (counts.local_loads, counts.local_stores, counts.shared_loads, counts.shared_stores) == (1, 1, 1, 1)
    assert (counts.shuffles, counts.barriers, counts.special_functions, counts.branches) == (2, 1, 1, 1)
    assert (counts.atomics, counts.tensor_core, counts.bulk_copies) == (1, 1, 0)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("amdhsa--gfx942\n...", "amdhsa--gfx950\n...", r"is for gfx950; expected gfx942"),
        ("amdhsa.target:", "target:", r"is for no target; expected gfx942"),
        (".vgpr_spill_count: 3", "", r"does not state \.vgpr_spill_count"),
        ("amdhsa.kernels:", "kernels:", r"is for no target"),
    ],
)
def test_an_assembly_of_another_target_or_without_a_figure_is_refused(old: str, new: str, said: str) -> None:
    assert old in ASSEMBLY
    with pytest.raises(CompileError, match=said):
        read(ASSEMBLY.replace(old, new))


def of(report: StaticReport, kernel: str) -> KernelEvidence:
    (found,) = [one for one in report.results if (one.kernel, one.case) == (f"unit_sum/{kernel}@1", "unit_sum:rows")]
    return found


def test_evidence_is_that_of_the_real_call(on_amd: StaticReport) -> None:
    (launch,) = of(on_amd, "unchanged").launches
    code = launch.code
    assert (launch.grid, launch.threads) == ((4096, 1, 1), 256), "four waves of 64"
    assert code.instructions.global_loads == {16: 1}, "1024 aligned floats over 256 threads: one load of 16 bytes"
    assert code.instructions.global_stores == {16: 1}
    assert (code.spill_stores, code.spill_loads, code.stack, code.instructions.local) == (0, 0, 0, 0)
    assert launch.dynamic_shared >= 4 * 4, "a sum per wave goes through LDS"
    assert 0 < code.registers <= 64
    assert code.amd
    assert (code.amd.accumulation, code.amd.spilled_vector, code.amd.spilled_scalar) == (0, 0, 0)
    assert code.amd.scalar > 0
    assert (launch.occupancy.warps, launch.occupancy.share) == (32, 1.0)
    assert code.compiler.startswith("triton "), "LLVM is part of Triton"
    assert "ptxas" not in code.compiler
    assert 4 * code.instructions.total <= code.size


def test_a_planted_spill_shows_in_the_figures(on_amd: StaticReport) -> None:
    (launch,) = of(on_amd, "spills").launches
    code = launch.code
    assert code.amd
    assert min(code.spill_stores, code.spill_loads, code.stack, code.instructions.local, code.amd.spilled_vector) > 0
    assert code.registers <= 64
    assert launch.occupancy.limited_by == ("waves", "vgprs"), "eight waves of 64 registers are all that a SIMD has"


def test_kernels_that_are_not_for_amd_are_declined_with_a_reason(on_amd: StaticReport) -> None:
    """CUDA C++, torch, and a launch with an option of NVIDIA's; a mistyped option is an error, as everywhere."""
    declined = {"in_cuda": "CUDA C++ is compiled for NVIDIA GPUs only", "split": "needs a Triton kernel", "narrower": "'maxnreg'"}
    for kernel, reason in declined.items():
        found = of(on_amd, kernel)
        assert (found.status, found.launches) == (StaticStatus.UNSUPPORTED, ())
        assert found.reason.startswith("gfx942 is an AMD GPU: ")
        assert reason in found.reason
    assert of(on_amd, "longer").status is StaticStatus.LAUNCH_ERROR


def test_the_table_has_amd_columns(on_amd: StaticReport, sound: StaticReport) -> None:
    columns = evidence_columns(on_amd)
    assert columns[3:9] == ("vgprs", "agprs", "sgprs", "spills", "v/s spilled", "scratch")
    rows = evidence_rows(on_amd)
    assert {len(row) for row in rows} == {len(columns)}
    (row,) = [row for row in rows if row[2] == "unit_sum/spills@1" and row[0] == "unit_sum:rows"]
    assert row[columns.index("spills")] != "0"
    assert evidence_columns(sound) == EVIDENCE_COLUMNS


def test_a_baseline_of_amd_is_kept_and_judged(on_amd: StaticReport, tmp_path: Path) -> None:
    stored = read_static(promote_static(on_amd, tmp_path, force=True))
    compiled = sorted((one for one in on_amd.results if one.status is StaticStatus.COMPILED), key=lambda one: one.key)
    assert stored.results == tuple(compiled)
    keys = [one.case for one in compiled]
    assert {one.kind for one in judge(stored, stored, margin=0.05, cases=keys)} == {VerdictKind.PASS}
    worse = msgspec.structs.replace(stored, results=tuple(_spoiled(one) for one in stored.results))
    assert {one.kind for one in judge(worse, stored, margin=0.05, cases=keys)} == {VerdictKind.REGRESSION}


def _spoiled(one: KernelEvidence) -> KernelEvidence:
    code = one.launches[0].code
    spilled = msgspec.structs.replace(code, spill_stores=code.spill_stores + 4)
    return msgspec.structs.replace(one, launches=(msgspec.structs.replace(one.launches[0], code=spilled),))


def test_nvidias_records_have_no_field_of_amd(sound: StaticReport) -> None:
    """Neither their files nor their JSON changed when AMD's came."""
    assert b'"amd"' not in msgspec.json.encode(sound)
    assert '"amd"' not in str(read_parquet(encode_static(sound)).schema)
    assert "amd" not in str(read_parquet(encode_static(sound)).schema)


def test_amd_compilers_are_tritons_alone() -> None:
    tools = Toolchain(triton="3.9.0", ptxas="12", ptxas_blackwell="13", nvrtc="13", nvdisasm="13")
    assert tools.compiler(Language.TRITON, amd=True) == "triton 3.9.0"
    assert "ptxas" in tools.compiler(Language.TRITON)


def test_kernels_that_are_limited_on_one_target_are_one_row(on_amd: StaticReport, sound: StaticReport) -> None:
    """The planted spill is found on its target; full occupancy without spills is left out."""
    rows = limited_rows([sound, on_amd])
    assert [row[:3] for row in rows] == [(case, "unit_sum/spills@1", "-") for case in ("unit_sum:rows", "unit_sum:again")]
    assert all(row[3].startswith("100 % waves, vgprs; spills ") for row in rows)
    assert limited_rows([sound]) == []


def test_low_occupancy_is_a_limit(sound: StaticReport) -> None:
    first = sound.results[0]
    low = msgspec.structs.replace(first.launches[0].occupancy, share=0.49, limited_by=("registers",))
    launches = (msgspec.structs.replace(first.launches[0], occupancy=low),)
    report = msgspec.structs.replace(sound, results=(msgspec.structs.replace(first, launches=launches), *sound.results[1:]))
    assert limited_rows([report]) == [(first.case, first.kernel, "49 % registers")]
