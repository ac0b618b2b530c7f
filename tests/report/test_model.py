"""The report of a model's denoise step says what its record says, in the terminal's tables and in Markdown."""

from __future__ import annotations

import math

import msgspec

from fusebench.report.model import head_lines, loop_rows, model_markdown, stage_columns, stage_remarks, stage_rows, time_rows, whole_lines
from fusebench.report.plots.step import step_figure, step_png
from fusebench.schema import Estimate
from fusebench.schema.models import WholeStack, WholeStep
from helpers.synthetic_records import model_record


def test_the_head_says_that_the_stack_is_reduced() -> None:
    (line,) = head_lines(model_record())
    assert "published widths; a reduced stack: 2 of 19 num_layers; 2 billion weights (random)" in line
    (line,) = head_lines(model_record(layers={"num_layers": 19}))
    assert "full configuration; 2 billion" in line


def test_a_row_per_variant() -> None:
    split, fused, compiled = time_rows(model_record())
    assert split[:3] == ["split", "10.00", "1"]
    assert split[4:] == ["9.50", "-", "-", "1755", "1.0", ""]
    assert fused[:3] == ["fused", "8.00", "1.250x [1.240, 1.260]"]
    assert fused[4:] == ["7.60", "1.250x [1.240, 1.260]", "pass", "-", "-", "improvement"]
    assert time_rows(model_record(acceptance={"fused": False}))[1][6] == "fail"
    assert compiled[:3] == ["compiled", "-", "Unsupported: graph break"]


def test_absent_gpu_times_are_told() -> None:
    assert "absent" not in model_markdown(model_record())
    assert "GPU busy times are absent: a CPU leaves none" in model_markdown(model_record(gpu_times_absent="a CPU leaves none"))


def test_what_the_reduced_stack_says_of_the_whole_is_told_with_its_check() -> None:
    steps = (
        WholeStep(
            variant="split", block_ms={"num_layers": 2.0}, rounds_ms=(44.0,), time_ms=Estimate(44.0, 0.0, math.inf), measured_ms=45.0
        ),
        WholeStep(variant="fused"),
    )
    whole = WholeStack(sizes={"num_layers": 1}, steps=steps, speedup=Estimate(1.2, 1.1, 1.3), checked="split: fits; fused: too noisy")
    assert whole_lines(model_record(whole=whole)) == [
        "split: 44.00 ms [?] by its blocks: 2.000 ms for a block of num_layers",
        "speedup of the whole by its blocks: 1.200x [1.100, 1.300]",
        "split: fits",
        "fused: too noisy",
    ]
    assert "* fused: too noisy" in model_markdown(model_record(whole=whole))
    assert "The whole model" not in model_markdown(model_record())


def test_the_breakdown_adds_up_to_the_span() -> None:
    assert stage_columns(model_record()) == ["stage", "split ms", "fused ms"]
    rows = {name: [float(one) for one in cells] for name, *cells in stage_rows(model_record())}
    assert rows == {"matmul": [6.0, 6.0], "norm": [3.0, 0.0], "idle": [1.0, 0.5], "span": [10.0, 8.0]}


def test_stages_of_a_graph_rest_on_names() -> None:
    assert stage_remarks(model_record()) == []
    graph = msgspec.structs.replace(model_record().breakdowns[1], variant="fused_graph")
    (said,) = stage_remarks(model_record(breakdowns=(graph,)))
    assert said.startswith("fused_graph: in a CUDA graph stages rest on kernel names alone")
    assert said in model_markdown(model_record(breakdowns=(graph,)))


def test_the_page_holds_every_part() -> None:
    page = model_markdown(model_record(findings=("12 of 57 calls fell back: strides",), failures=("drift: no",)))
    for said in (
        "# Toy, 64 x 64",
        "a step saves 2.00 ms; predicted by stored run run 1: 1.50 ms (-25.0 %)",
        "+0.50 ms: gaps",
        "split is host-bound",
        "drift of fused against split: pass: 0.90 times",
        "substitution: 12 of 57 calls fell back: strides",
        "failed: drift: no",
        "fused: improvement: 1.250x",
    ):
        assert said in page


def test_the_unexplained_part_is_told_with_its_share() -> None:
    explanation = model_record().explanation
    assert explanation is not None
    assert "unexplained" not in model_markdown(model_record()), "an older record's causes hold it"
    found = msgspec.structs.replace(explanation, unexplained_us=-200.0, unpredicted_calls=7)
    assert "1.50 ms (-25.0 %, without 7 calls)" in model_markdown(model_record(explanation=found))
    assert "-0.20 ms: unexplained (-10.0 % of the saving)" in model_markdown(model_record(explanation=found))


def test_the_loop_stands_beside_its_steps() -> None:
    assert loop_rows(model_record()) == [
        ["split", "4", "41.00", "40.00", "1"],
        ["fused", "4", "33.00", "32.00", "1.242x [1.240, 1.250]"],
    ]
    assert "## Denoise loop" in model_markdown(model_record())
    assert "## Denoise loop" not in model_markdown(model_record(loops=()))


def test_the_picture_stacks_the_stages_and_the_idle_time() -> None:
    figure = step_figure(model_record())
    bars = [(round(bar.get_x(), 3), round(bar.get_width(), 3)) for bar in figure.axes[0].patches]
    assert bars == [(0, 6.0), (6.0, 3.0), (9.0, 1.0), (0, 6.0), (6.0, 0.5)]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["matmul", "norm", "idle"]
    assert step_png(model_record(breakdowns=())).startswith(b"\x89PNG")


def test_the_page_names_its_picture_where_there_is_one() -> None:
    assert "](step.png)" in model_markdown(model_record(), picture="step.png")
    assert "step.png" not in model_markdown(model_record())
