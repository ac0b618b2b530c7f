"""The page of all models' steps: the best variants, what is missing, and what is wrong with a record."""

from __future__ import annotations

import math

import msgspec
import pytest

from fusebench.models.catalogue import MODELS
from fusebench.report.steps import step_pages, steps_markdown
from fusebench.schema import Estimate
from fusebench.schema.models import Confirmation, GpuTime, ModelRecord, StepTime
from helpers.synthetic_records import model_record


def step(variant: str, time_ms: float) -> StepTime:
    """A variant of a model whose `split` takes 10 ms."""
    ratio = 10.0 / time_ms
    return StepTime(
        variant=variant,
        rounds_ms=(time_ms, time_ms),
        time_ms=Estimate(time_ms, time_ms, time_ms),
        speedup=None if variant == "split" else Estimate(ratio, ratio - 0.01, ratio + 0.01),
        peak_bytes=3 * 2**30,
        gpu=GpuTime(
            rounds_ms=(time_ms,),
            busy_ms=Estimate(time_ms, 0.0, math.inf),
            span_ms=time_ms,
            speedup=Estimate(1.35, 0.0, math.inf),
        ),
    )


@pytest.fixture
def record() -> ModelRecord:
    times = [step(*one) for one in (("split", 10.0), ("fused", 8.0), ("fused_graph", 7.5), ("compiled", 9.0), ("compiled_graph", 8.5))]
    failed = StepTime(variant="fused_compiled", error="graph break at a norm")
    again = Confirmation(speedups={"fused_graph": Estimate(1.3, 1.2, 1.4)})
    return model_record(model="flux1_dev", title="FLUX.1", times=(*times, failed), confirmation=again, layers={"num_layers": 19})


def rows(page: str, first: str) -> list[list[str]]:
    """Cells of the rows whose first cell begins with `first`."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith(f"| {first}")]


def test_the_best_variants_are_set_against_each_other(record: ModelRecord) -> None:
    steps, variants, checks, saving = rows(steps_markdown({"flux1_dev": record}), "FLUX.1")
    assert steps == ["FLUX.1", "10.00", "1.176x compiled_graph", "1.333x fused_graph", "1.133x [1.133, 1.133]"]
    assert variants == ["FLUX.1", "1.250x", "1.111x", "failed", "–", "1.333x", "1.176x", "–"]
    assert checks == ["FLUX.1", "1.333x fused_graph", "1.300x [1.200, 1.400]", "1.350x [?]", "pass, 1.00x", "3.0"]
    assert saving == ["FLUX.1", "2.00", "1.50", "1.50", "-25.0 %", "–", "–", "–", "–", "–"]


def test_every_model_of_the_catalogue_has_a_row(record: ModelRecord) -> None:
    page = steps_markdown({"flux1_dev": record})
    assert [name for name in MODELS if name != "flux1_dev" and rows(page, name)[0][1] != "not measured"] == []
    assert rows(steps_markdown({}), "flux1_dev")[0] == ["flux1_dev", "not measured", "–", "–", "–"]


def test_a_record_with_a_fault_is_named(record: ModelRecord) -> None:
    bad = msgspec.structs.replace(
        record, layers={"num_layers": 2}, complete=False, missing=("denoise loop",), findings=("2 calls fell back",), confirmation=None
    )
    page = steps_markdown({"flux1_dev": bad})
    assert rows(page, "FLUX.1 (2 of 19 num")[2][2] == "not repeated"
    for said in ("missing: denoise loop", "2 calls fell back", "graph break at a norm"):
        assert said in page


def test_a_page_and_a_picture_for_each_model(record: ModelRecord) -> None:
    toy = model_record(breakdowns=())
    pages = step_pages({"flux1_dev": record, "toy": toy})
    assert set(pages) == {"README.md", "flux1_dev.md", "flux1_dev.png", "toy.md"}
    assert b"](flux1_dev.png)" in pages["flux1_dev.md"]
    assert b"| [FLUX.1](flux1_dev.md) |" in pages["README.md"]
    assert b"| [Toy, 64 x 64 (2 of 19 num_layers)](toy.md) |" in pages["README.md"].replace(b"\\", b"")
