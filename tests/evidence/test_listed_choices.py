"""Tunable choices in static evidence: those that dispatch takes for a case, and those that are asked for by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fusebench.evidence.evidence_cache import EvidenceCache
from fusebench.evidence.listed_choices import asked_choices
from fusebench.evidence.records import StaticReport, StaticStatus
from fusebench.evidence.static_gate import judge
from fusebench.registry.dispatching.tables import encode_table, table_name
from fusebench.schema import VerdictKind
from helpers import dispatch_tables

Evidence = Callable[..., StaticReport]
DECLARED, CHOICE, OTHER = "unit_sum/tuned@1", "unit_sum/tuned__two_warps@1", "unit_sum/tuned__one_warp@1"
KERNEL = """
import torch

from fusebench import Arguments, kernel, tensor

from .in_triton import launch


class Rows(Arguments):
    x: torch.Tensor = tensor("rows columns")


@kernel("unit_sum", "tuned", version=1, role="fused", language="triton", choices={"one_warp": 1, "two_warps": 2})
def tuned(call: Rows, choice: int = 4) -> None:
    launch(call.x, num_warps=choice)
"""


@pytest.fixture
def project(tmp_path: Path, make_project: Callable[..., Path]) -> Path:
    root = make_project(tmp_path / "project")
    (root / "kernels" / "unit_sum" / "tuned.py").write_text(KERNEL)
    return root


def put_first(root: Path, *names: str, gpu: str = "NVIDIA H200", triton: str = "3.6", rows: int = 4096) -> None:
    """A dispatch table with the kernels `names` in this order for the suite's cases."""
    times = [(name, 1.0 + place) for place, name in enumerate(names)]
    entry = msgspec.structs.replace(dispatch_tables.entry(0, *times), sizes={"rows": rows, "columns": 1024})
    table = dispatch_tables.table((entry,), op="unit_sum", gpu=gpu, triton=triton)
    folder = root / "kernels" / "unit_sum" / "dispatch"
    folder.mkdir(exist_ok=True)
    (folder / table_name(gpu, triton)).write_bytes(encode_table(table))


def tuned(report: StaticReport) -> list[tuple[str, str]]:
    """Case and kernel of the results of `tuned` and its choices."""
    return [one.key for one in report.results if "/tuned" in one.kernel]


def test_a_choice_that_dispatch_takes_is_listed_and_another_is_not(project: Path, evidence: Evidence) -> None:
    put_first(project, "tuned__two_warps@1", "tuned__one_warp@1", "tuned@1")
    report = evidence(project)
    assert tuned(report) == [(f"unit_sum:{case}", kernel) for case in ("rows", "again") for kernel in (DECLARED, CHOICE)]
    threads = {one.kernel: one.launches[0].threads for one in report.results if "/tuned" in one.kernel}
    assert threads == {DECLARED: 128, CHOICE: 64}, "each with its own launch"


@pytest.mark.parametrize(
    ("told", "names", "changes"),
    [
        ("a kernel as declared is ahead", ("tuned@1", "tuned__two_warps@1"), {}),
        ("another architecture's GPU", ("tuned__two_warps@1",), {"gpu": "NVIDIA B200"}),
        ("another key, and choices are not predicted", ("tuned__two_warps@1",), {"rows": 4095}),
    ],
)
def test_a_choice_that_dispatch_does_not_take_is_not_listed(
    project: Path, evidence: Evidence, told: str, names: tuple[str, ...], changes: dict[str, object]
) -> None:
    put_first(project, *names, **changes)  # type: ignore[arg-type]
    assert {kernel for _, kernel in tuned(evidence(project, kernel="tuned*"))} == {DECLARED}, told


def test_a_table_that_dispatch_would_refuse_lists_none(project: Path, evidence: Evidence) -> None:
    put_first(project, "tuned__two_warps@1")
    (file,) = (project / "kernels" / "unit_sum" / "dispatch").iterdir()
    file.write_text(file.read_text().replace("1.0", "1.5"))
    assert {kernel for _, kernel in tuned(evidence(project, kernel="tuned"))} == {DECLARED}


def test_choices_that_are_asked_for_are_listed_whatever_was_kept_before(project: Path, evidence: Evidence, tmp_path: Path) -> None:
    cache = EvidenceCache(tmp_path / "cache")
    assert {kernel for _, kernel in tuned(evidence(project, kernel="tuned*", cache=cache))} == {DECLARED}
    asked = evidence(project, kernel="tuned__*", cache=cache)
    assert {one.kernel for one in asked.results} == {OTHER, CHOICE}
    assert {one.status for one in asked.results} == {StaticStatus.COMPILED}
    assert evidence(project, kernel="tuned__*", cache=cache) == asked, "from the cache"
    assert {one.kernel for one in evidence(project, kernel=[OTHER, DECLARED], cache=cache).results} == {OTHER, DECLARED}
    assert {kernel for _, kernel in tuned(evidence(project, kernel="tuned*", cache=cache))} == {DECLARED}


def test_the_gate_guards_a_choice(project: Path, evidence: Evidence) -> None:
    """Planted defect: the choice of two warps takes one."""
    put_first(project, "tuned__two_warps@1")
    before = evidence(project, kernel="tuned,tuned__*")
    file = project / "kernels" / "unit_sum" / "tuned.py"
    file.write_text(KERNEL.replace('"two_warps": 2', '"two_warps": 1'))
    after = evidence(project, kernel="tuned,tuned__*")
    judged = judge(after, before, margin=0.05, cases=["unit_sum:rows"], released=True)
    assert {one.kernel: one.kind for one in judged if one.case == "unit_sum:rows"} == {
        DECLARED: VerdictKind.PASS,
        OTHER: VerdictKind.PASS,
        CHOICE: VerdictKind.REGRESSION,
    }


def test_only_a_name_with_a_mark_asks_for_choices() -> None:
    assert asked_choices(None) == asked_choices("*,fused_cuda@3") == asked_choices(["unit_sum/tuned@1"]) == ()
    assert asked_choices("fused__b,fused,fused__a@2") == ("fused__a@2", "fused__b")
    assert asked_choices(["unit_sum/tuned__one_warp@1", "unit_sum/tuned@1"]) == ("unit_sum/tuned__one_warp@1",)
