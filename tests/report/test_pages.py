"""A run of several suites as a folder of pages: each suite whole and alone, the index leading to all of them."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from fusebench.report.run.pages import only_suite, suite_pages
from fusebench.schema import Run, Spending
from fusebench.stats.weighted import suite_summaries


def two_suites(synthetic: Any) -> Run:
    one = synthetic.make_run(cases=("flux_1024", "zimage_1024"))
    other = synthetic.make_run(cases=("joint",), suite="models/flux1_dev")
    cases, results = [*one.cases, *other.cases], [*one.results, *other.results]
    return msgspec.structs.replace(
        one, cases=cases, results=results, suites=suite_summaries(cases, results), spending=Spending(total_s=12.0)
    )


def test_every_suite_has_a_page_a_picture_and_a_link(synthetic: Any) -> None:
    pages = suite_pages(two_suites(synthetic))
    assert set(pages) == {"README.md", "qknorm_rope.md", "qknorm_rope.png", "models_flux1_dev.md", "models_flux1_dev.png"}
    assert set(re.findall(r"\]\((.*?)\)", pages["README.md"].decode())) == {"qknorm_rope.md", "models_flux1_dev.md"}
    assert pages["models_flux1_dev.png"].startswith(b"\x89PNG")
    assert "](models_flux1_dev.png)" in pages["models_flux1_dev.md"].decode()


def test_a_page_holds_its_own_suite_alone(synthetic: Any) -> None:
    part = only_suite(two_suites(synthetic), "models/flux1_dev")
    assert {summary.case.key for summary in part.cases} == {"models/flux1_dev:joint"}
    assert {result.case_key for result in part.results} == {"models/flux1_dev:joint"}
    assert [summary.name for summary in part.suites] == ["models/flux1_dev"]
    assert part.spending is None, "what the whole run cost is not what this suite cost"


def test_the_index_says_what_each_suite_gained_and_what_the_run_cost(synthetic: Any) -> None:
    run = two_suites(synthetic)
    index = suite_pages(run)["README.md"].decode()
    for summary in run.suites:
        assert f"{summary.weighted_speedup['best_fused']:.3f}x" in index
    assert "time spent: 12.0 s" in index
    assert run.environment.device_name in index
