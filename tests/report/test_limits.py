"""The page of how near each case comes to the limit."""

from __future__ import annotations

from types import ModuleType

import msgspec
import pytest

from fusebench.report.plots.limits import limits_png
from fusebench.report.run.limits import limits_markdown, reached_cases
from fusebench.schema import Run, Status

CUDA, TRITON = "qknorm_rope/fused_cuda@1", "qknorm_rope/fused_triton@2"
SLOW = {"flux_1024": 1.05, "zimage_1024": 1.2}
"""The best fused kernels take 1.08 of the limit, and so many times that on two cases."""


@pytest.fixture
def run(synthetic: ModuleType) -> Run:
    slow = {(case, kernel): factor for case, factor in SLOW.items() for kernel in synthetic.KERNELS}
    status = {("batch2_medium", kernel): (Status.WRONG, "too large an error") for kernel in synthetic.KERNELS if "fused" in kernel}
    made: Run = synthetic.make_run(slow=slow, status=status)
    return msgspec.structs.replace(made, cases=[msgspec.structs.replace(one, dispatched=CUDA) for one in made.cases])


def test_the_share_of_a_case_is_its_fastest_fused_kernels_and_the_lowest_come_first(run: Run) -> None:
    found = reached_cases(run)
    assert [one.summary.case.name for one in found[:2]] == ["zimage_1024", "flux_1024"]
    assert [one.share for one in found] == pytest.approx([1 / 1.08 / 1.2, 1 / 1.08 / 1.05, 1 / 1.08, 1 / 1.08])
    assert {one.best.kernel for one in found} == {TRITON}
    assert [one.dispatched for one in found] == pytest.approx([1.11 / 1.08] * 4)


def test_the_page_counts_levels_and_names_what_has_no_share(run: Run) -> None:
    page = limits_markdown(run, picture="limits.png")
    assert (
        "**Of 4 cases, 0.0 % reach 95 % of the limit, 50.0 % reach 90 %, 75.0 % reach 80 %; the lowest reaches 77.2 % (4096x27x128 bf16).**"
        in page
    )
    (row,) = [line for line in page.splitlines() if line.startswith("| qknorm_rope | 4 ")]
    assert row == "| qknorm_rope | 4 | 0.0 % | 50.0 % | 75.0 % | 90.4 % | 77.2 % | 1.90x | 0.0 % | 1.03x |"
    assert "![Share of the limit by op, a mark per case](limits.png)" in page
    assert "* batch2_medium (4096x28x128 bf16)" in page
    assert "* `qknorm_rope/fused_cuda@1` on batch2_medium: wrong: too large an error" in page


def test_several_ops_have_a_row_each_and_one_together(run: Run) -> None:
    named = [
        msgspec.structs.replace(one, case=msgspec.structs.replace(one.case, op="rotary_embedding")) if one.case.name == "flux_1024" else one
        for one in run.cases
    ]
    page = limits_markdown(msgspec.structs.replace(run, cases=named))
    assert [line.split(" | ")[0] + line.split(" | ")[1] for line in page.splitlines() if line.startswith(("| qk", "| rot", "| all"))] == [
        "| qknorm_rope3",
        "| rotary_embedding1",
        "| all4",
    ]
    assert "![" not in page


def test_long_calls_have_a_row_of_their_own_beside_short_ones(synthetic: ModuleType) -> None:
    short = {("flux_1024", kernel): 0.1 for kernel in synthetic.KERNELS}
    page = limits_markdown(synthetic.make_run(slow=short))
    assert [line.split(" | ")[1] for line in page.splitlines() if line.startswith("| 10 us and more |")] == ["4"]
    assert "10 us and more" not in limits_markdown(synthetic.make_run())


def test_an_equal_case_counts_once(run: Run) -> None:
    copied = [msgspec.structs.replace(one, same_as="other:case") if one.case.name == "flux_1024" else one for one in run.cases]
    assert len(reached_cases(msgspec.structs.replace(run, cases=copied))) == 3


def test_a_run_without_fused_kernels_says_so(synthetic: ModuleType) -> None:
    bare = synthetic.make_run(kernels=[synthetic.BASELINE])
    assert "No fused kernel was timed beside a limit." in limits_markdown(bare)
    assert limits_png(bare).startswith(b"\x89PNG")


def test_the_picture_shows_where_cases_are(run: Run) -> None:
    first = limits_png(run)
    assert first.startswith(b"\x89PNG")
    assert first == limits_png(run), "the same run gives the same bytes"
    fewer = [one for one in run.results if one.case != "zimage_1024"]
    assert first != limits_png(msgspec.structs.replace(run, results=fewer))
