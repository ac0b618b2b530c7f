"""The gate's rules, each on a planted defect: in real kernels, then one figure at a time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fusebench.evidence.disassembly import Instructions
from fusebench.evidence.occupancy import Occupancy
from fusebench.evidence.records import Code, KernelEvidence, Launch, StaticReport, StaticStatus, Toolchain
from fusebench.evidence.static_gate import IDENTICAL, StaticJudgement, became_narrower, describe_widths, judge
from fusebench.schema import ExitCode, Language, Role, VerdictKind
from fusebench.verdict.exit_status import static_exit_code

REGRESSION, PASS, IMPROVEMENT = VerdictKind.REGRESSION, VerdictKind.PASS, VerdictKind.IMPROVEMENT
CASES = ("unit_sum:rows", "unit_sum:again")
TOOLS = Toolchain(triton="3.9.0", ptxas="12.9.86", ptxas_blackwell="13.4.59", nvrtc="13.4.92", nvdisasm="13.1.80")
INSTRUCTIONS = Instructions(total=600, global_loads={16: 8}, global_stores={16: 4})
CODE = Code(
    entry="k", compiler="triton 3.9.0", sha256="a" * 64, size=9600, registers=64, stack=0, spill_stores=0, spill_loads=0, block_barriers=1,
    static_shared=0, instructions=INSTRUCTIONS,
)  # fmt: skip
LAUNCH = Launch(
    grid=(132, 1, 1),
    threads=256,
    dynamic_shared=0,
    occupancy=Occupancy(blocks=4, warps=32, share=0.5, limited_by=("registers",)),
    code=CODE,
)


def launch(*, instructions: dict[str, Any] | None = None, occupancy: dict[str, Any] | None = None, **code: Any) -> Launch:
    """A launch that differs in these figures, and in its hash if in any."""
    counts = msgspec.structs.replace(INSTRUCTIONS, **(instructions or {}))
    sha256 = "b" * 64 if instructions or code else CODE.sha256
    changed = msgspec.structs.replace(CODE, **{"instructions": counts, "sha256": sha256, **code})
    return msgspec.structs.replace(LAUNCH, code=changed, occupancy=msgspec.structs.replace(LAUNCH.occupancy, **(occupancy or {})))


def report(*launches: Launch, **changes: Any) -> StaticReport:
    one = KernelEvidence(
        case=CASES[0], op="unit_sum", shape="4096x1024", params="p", kernel="unit_sum/k@1", role=Role.FUSED, language=Language.TRITON,
        status=StaticStatus.COMPILED, launches=launches or (LAUNCH,),
    )  # fmt: skip
    return StaticReport(target="sm_90", toolchain=TOOLS, results=(msgspec.structs.replace(one, **changes),))


def verdict(new: StaticReport, old: StaticReport | None = None) -> StaticJudgement:
    (found,) = judge(new, old or report(), margin=0.05, cases=CASES)
    return found


def test_each_planted_defect_in_a_real_kernel_is_a_regression(sound: StaticReport, spoiled: StaticReport) -> None:
    found = {(one.case, one.kernel): one for one in judge(spoiled, sound, margin=0.05, cases=CASES)}
    for case in CASES:
        kinds = {kernel.removeprefix("unit_sum/").removesuffix("@1"): one for (where, kernel), one in found.items() if where == case}
        for kernel, figure in (
            ("spilling", "bytes of spill stores 0 ->"),
            ("spilling", "local-memory instructions 0 ->"),
            ("narrower", "global loads 2x16 B -> 8x4 B"),
            ("fewer_warps", "resident warps 64 -> 32"),
            ("longer", "instructions "),
        ):
            assert kinds[kernel].kind is REGRESSION
            assert figure in kinds[kernel].reason, kernel
        for kernel in ("unchanged", "in_cuda"):
            assert (kinds[kernel].kind, kinds[kernel].reason) == (PASS, IDENTICAL)
    assert static_exit_code(list(found.values()), allow_incomparable=True) is ExitCode.REGRESSION


def test_the_way_back_is_an_improvement(sound: StaticReport, spoiled: StaticReport) -> None:
    kinds = {one.kernel: one.kind for one in judge(sound, spoiled, margin=0.05, cases=CASES)}
    assert kinds["unit_sum/spilling@1"] is IMPROVEMENT
    assert REGRESSION not in (kinds["unit_sum/narrower@1"], kinds["unit_sum/longer@1"])


@pytest.mark.parametrize(
    ("new", "kind", "words"),
    [
        (launch(spill_stores=4), REGRESSION, "bytes of spill stores 0 -> 4"),
        (launch(spill_loads=4), REGRESSION, "bytes of spill loads 0 -> 4"),
        (launch(stack=8), REGRESSION, "bytes of stack 0 -> 8"),
        (launch(instructions={"local_loads": 1}), REGRESSION, "local-memory instructions 0 -> 1"),
        (launch(occupancy={"warps": 24, "blocks": 3}), REGRESSION, "resident warps 32 -> 24"),
        (launch(instructions={"global_loads": {16: 7, 8: 2}}), REGRESSION, "global loads 8x16 B -> 7x16 B, 2x8 B"),
        (launch(instructions={"global_stores": {4: 16}}), REGRESSION, "global stores 4x16 B -> 16x4 B"),
        (launch(instructions={"total": 631}), REGRESSION, "instructions 600 -> 631"),
        (launch(instructions={"total": 630}), PASS, "instructions 600 -> 630"),
        (launch(instructions={"total": 569}), IMPROVEMENT, "instructions 600 -> 569"),
        (launch(occupancy={"warps": 40, "blocks": 5}), IMPROVEMENT, "resident warps 32 -> 40"),
        (launch(instructions={"global_loads": {32: 4}}), IMPROVEMENT, "global loads 8x16 B -> 4x32 B"),
        (launch(registers=72), PASS, "registers 64 -> 72"),
        (launch(instructions={"barriers": 3}), PASS, "barriers 0 -> 3"),
        (launch(instructions={"global_loads": {16: 8, 4: 1}}), PASS, "global loads 8x16 B -> 8x16 B, 1x4 B"),
        (launch(size=9600), PASS, "other machine code, the same in every figure"),
        (LAUNCH, PASS, IDENTICAL),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_rule(new: Launch, kind: VerdictKind, words: str) -> None:
    found = verdict(report(new))
    assert (found.kind, found.reason) == (kind, words)


def test_a_regression_beside_an_improvement_is_a_regression() -> None:
    found = verdict(report(launch(spill_stores=4, instructions={"total": 300})))
    assert (found.kind, found.reason) == (REGRESSION, "bytes of spill stores 0 -> 4")
    assert {change.kind for change in found.changes} == {REGRESSION, IMPROVEMENT}


def test_a_second_launch_counts_whole() -> None:
    found = verdict(report(LAUNCH, launch(spill_stores=4)))
    assert found.kind is REGRESSION
    assert "bytes of spill stores 0 -> 4" in found.reason
    assert "instructions 600 -> 1200" in found.reason


def test_other_compilers_are_incomparable_and_what_changed_is_shown() -> None:
    found = verdict(report(launch(compiler="triton 3.10.0", spill_stores=4)))
    assert (found.kind, found.reason) == (VerdictKind.INCOMPARABLE, "compiled by triton 3.10.0, the baseline by triton 3.9.0")
    assert [str(change) for change in found.changes] == ["bytes of spill stores 0 -> 4"]
    assert static_exit_code([found], allow_incomparable=False) is ExitCode.UNDECIDED
    assert static_exit_code([found], allow_incomparable=True) is ExitCode.PASS


def test_a_case_that_changed_is_incomparable() -> None:
    assert verdict(report(params="q")).kind is VerdictKind.INCOMPARABLE


def test_what_failed_now_is_an_error_and_what_is_not_there_is_undecided() -> None:
    failed = verdict(report(status=StaticStatus.COMPILE_ERROR, reason="no such function", launches=()))
    assert (failed.kind, failed.reason) == (VerdictKind.ERROR, "no such function")
    assert static_exit_code([failed], allow_incomparable=True) is ExitCode.KERNEL_FAILED
    declined = verdict(report(status=StaticStatus.UNSUPPORTED, reason="too wide", launches=()))
    assert (declined.kind, "too wide" in declined.reason) == (VerdictKind.UNDECIDED, True)
    nothing = StaticReport(target="sm_90", toolchain=TOOLS, results=())
    (gone,) = judge(nothing, report(), margin=0.05, cases=CASES)
    assert (gone.kind, gone.kernel) == (VerdictKind.UNDECIDED, "unit_sum/k@1")
    assert judge(nothing, report(), margin=0.05, cases=("other:case",)) == [], "what was not selected is not missed"
    assert judge(nothing, report(), margin=0.05, cases=CASES, kernel="other") == []
    assert judge(nothing, report(), margin=0.05, cases=CASES, kernel="other,k@*") == [gone]
    (new,) = judge(report(), nothing, margin=0.05, cases=CASES)
    assert (new.kind, new.reason) == (PASS, "new: the baseline does not have it")


@pytest.mark.parametrize(
    ("old", "new", "narrower"),
    [
        ({16: 8}, {8: 16}, True),
        ({16: 8, 4: 1}, {16: 7, 4: 5}, True),
        ({16: 8}, {16: 4, 8: 8}, True),
        ({32: 4}, {16: 8}, True),
        ({16: 8}, {16: 8, 4: 1}, False),
        ({16: 8, 4: 4}, {16: 8, 4: 2}, False),
        ({16: 8}, {16: 4}, False),
        ({16: 8}, {32: 4}, False),
        ({4: 32}, {16: 8}, False),
        ({}, {4: 1}, False),
    ],
)
def test_narrower_means_work_moved_to_narrower_instructions(old: dict[int, int], new: dict[int, int], narrower: bool) -> None:
    assert became_narrower(old, new) is narrower


def test_widths_are_described_widest_first() -> None:
    assert describe_widths({4: 1, 16: 8}) == "8x16 B, 1x4 B"
    assert describe_widths({}) == "none"


EDITED = {
    "its instructions": launch(instructions={"total": 601}),
    "its instructions for the better": launch(instructions={"total": 500}),
    "one instruction for another": launch(sha256="b" * 64),
    "the registers that it may take": launch(registers=72, sha256=CODE.sha256),
    "its grid": msgspec.structs.replace(LAUNCH, grid=(264, 1, 1)),
    "its block": msgspec.structs.replace(LAUNCH, threads=128),
    "its dynamic shared memory": msgspec.structs.replace(LAUNCH, dynamic_shared=1024),
}


@pytest.mark.parametrize("edited", EDITED)
def test_a_released_version_that_is_edited_in_place_is_a_regression_and_told_its_next_version(edited: str) -> None:
    (found,) = judge(report(EDITED[edited]), report(), margin=0.05, cases=CASES, released=True)
    assert found.kind is REGRESSION
    assert found.reason.startswith("unit_sum/k@1 is released and its machine code changed in place: make it version 2 (")


def test_what_leaves_a_released_versions_code_alone_passes() -> None:
    renamed = msgspec.structs.replace(LAUNCH, code=msgspec.structs.replace(CODE, entry="other"))
    for new in (report(), report(renamed), report(EDITED["its grid"], kernel="unit_sum/k@2")):
        assert [one.kind for one in judge(new, report(), margin=0.05, cases=()[:0], released=True)] == [PASS]


def test_other_compilers_make_other_code_of_a_released_version() -> None:
    elsewhere = launch(compiler="triton 3.10.0", sha256="b" * 64)
    (found,) = judge(report(elsewhere), report(), margin=0.05, cases=CASES, released=True)
    assert found.kind is VerdictKind.INCOMPARABLE
