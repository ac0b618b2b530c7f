"""The table of static evidence: waves of a launch, on rows whose machine code was shown before, too."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from fusebench.evidence.disassembly import Instructions
from fusebench.evidence.occupancy import Occupancy
from fusebench.evidence.records import Code, KernelEvidence, Launch, StaticReport, StaticStatus, Toolchain
from fusebench.report.evidence.static_table import evidence_columns, evidence_document, evidence_rows
from fusebench.schema import Language, Role

COUNTED = Path(__file__).parents[3] / "results" / "counters" / "nvidia_h200" / "select01" / "report.md"
H200 = 132
CODE = Code(
    entry="k", compiler="c", sha256="0" * 64, size=1, registers=96, stack=0, spill_stores=0, spill_loads=0, static_shared=0,
    block_barriers=1,
    instructions=msgspec.convert({name: {} if "global" in name else 0 for name in Instructions.__struct_fields__}, Instructions),
)  # fmt: skip


def launch(grid: int, resident: int) -> Launch:
    held = Occupancy(blocks=resident, warps=4 * resident, share=resident / 16, limited_by=("registers",))
    return Launch(grid=(grid, 1, 1), threads=128, dynamic_shared=0, occupancy=held, code=CODE)


def report(*launches: tuple[Launch, ...], target: str = "sm_90") -> StaticReport:
    results = tuple(
        KernelEvidence(
            case=f"s:{place}", op="o", shape="", params="", kernel="o/k@1", role=Role.FUSED, language=Language.TRITON,
            status=StaticStatus.COMPILED, launches=one,
        )
        for place, one in enumerate(launches)
    )  # fmt: skip
    return StaticReport(target=target, toolchain=Toolchain(triton="", ptxas="", ptxas_blackwell="", nvrtc="", nvdisasm=""), results=results)


def test_waves_are_those_that_nsight_compute_counts() -> None:
    row = next(line for line in COUNTED.read_text().splitlines() if line.startswith("| waves | 6.21 |"))
    counted = [float(cell) for cell in row.split("|")[2:4]]
    assert [round(launch(4096, resident).waves(H200), 2) for resident in (5, 7)] == counted
    assert launch(4096, 0).waves(H200) == math.inf


def test_a_row_of_shown_machine_code_holds_its_own_waves_and_no_other_figure() -> None:
    found = report((launch(1024, 6),), (launch(4096, 6), launch(66, 6)), (launch(512, 6),))
    columns, rows = evidence_columns(found), evidence_rows(found)
    assert {len(row) for row in rows} == {len(columns)}
    at = columns.index("waves")
    assert [row[at] for row in rows] == ["1.29", "5.17", "0.08", "0.65"]
    assert [row[-1] for row in rows] == ["", "launch 1 of 2", "launch 2 of 2", "same machine code as s:0"]
    assert [cell for cell in rows[3][3:-1] if cell] == ["0.65"]


@pytest.mark.parametrize(
    ("target", "resident", "waves"), [("sm_90", 6, pytest.approx(1.29, abs=0.01)), ("sm_90", 0, None), ("sm_1", 6, None)]
)
def test_json_holds_the_waves(target: str, resident: int, waves: object) -> None:
    document = evidence_document(report((launch(1024, resident),), target=target))
    assert document["results"][0]["launches"][0]["waves"] == waves
    assert document["target"] == target
