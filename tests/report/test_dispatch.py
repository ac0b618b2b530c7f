"""How close dispatch comes to the best fused kernel, in every report of a run."""

from __future__ import annotations

from types import ModuleType

import msgspec
import pytest
from rich.console import Console

from fusebench.ci.findings import from_gate
from fusebench.report.run.document import run_document
from fusebench.report.run.markdown import markdown_report
from fusebench.report.run.table import print_run
from fusebench.schema import Run

BEST, CUDA = "qknorm_rope/fused_triton@2", "qknorm_rope/fused_cuda@1"
LINE = (
    "dispatch / best fused: 80.0 % of 5 cases within 1.02x, 100.0 % within 1.05x; worst 1.03x on qknorm_rope:qwen_image_1024: "
    "fused_cuda@1 instead of fused_triton@2"
)


@pytest.fixture
def run(synthetic: ModuleType) -> Run:
    """Dispatch takes the best kernel on every case but one."""
    made = synthetic.make_run()
    chosen = [msgspec.structs.replace(one, dispatched=CUDA if one.case.name == "qwen_image_1024" else BEST) for one in made.cases]
    return msgspec.structs.replace(made, cases=chosen)


def shown(run: Run) -> str:
    console = Console(width=240, file=None, record=True, force_terminal=False)
    with console.capture() as captured:
        print_run(run, console)
    return captured.get()


def test_the_terminals_table_has_the_column_and_the_line(run: Run) -> None:
    lines = shown(run).splitlines()
    header = next(line for line in lines if "dispatch / best" in line)
    place = header.index("dispatch / best")
    assert {line[place : place + 15].strip() for line in lines if line.startswith("  fused_cuda@1")} == {"–", "1.03x"}
    assert LINE in lines


def test_the_markdown_report_has_the_column_and_the_line(run: Run) -> None:
    report = markdown_report(run)
    rows = [line.split(" | ") for line in report.splitlines() if line.startswith("| ")]
    place = next(row.index("dispatch / best") for row in rows if "dispatch / best" in row)
    assert [row[place] for row in rows if row[0] == "| qwen_image_1024"][:1] == ["1.03x"]
    assert f"{LINE}." in report.replace("\\", "")


def test_the_document_has_the_ratio_in_the_row_of_the_kernel_that_is_taken(run: Run) -> None:
    rows = {(row["case"], row["kernel"]): row["dispatch_over_best"] for row in run_document(run, None)["results"]}
    assert rows["qwen_image_1024", CUDA] == pytest.approx(1.028, abs=1e-3)
    assert rows["qwen_image_1024", BEST] is None
    assert rows["flux_1024", BEST] == 1.0


def test_a_record_without_choices_has_neither_column_nor_line(synthetic: ModuleType) -> None:
    run = synthetic.make_run()
    assert "dispatch" not in shown(run) + markdown_report(run)


def test_a_nightly_lists_a_worse_choice_as_a_regression() -> None:
    loss = {"case": "models/flux1_dev:qk_image", "kernel": CUDA, "before": BEST, "ratio": 1.16}
    (found,) = from_gate({"judgements": [], "dispatch_losses": [loss]})
    assert (found.verdict, found.gating, found.kernel, found.case) == ("regression", True, CUDA, loss["case"])
    assert found.reason == "dispatch takes it instead of qknorm_rope/fused_triton@2, at 1.16x the time"
    assert found.reproduce == "fusebench tune --suite models/flux1_dev --case qk_image --dry-run"
