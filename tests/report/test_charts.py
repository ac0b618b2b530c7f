"""A page's charts: every mark is said while marks can be told apart, and a chart of thousands stays small."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fusebench.report.html.charts import MOST_NAMED, roofline
from fusebench.report.wording import short_kernel


@pytest.mark.parametrize("cases", [4, 500])
def test_a_roofline_draws_every_share_and_names_it_while_there_is_room(synthetic: Any, cases: int) -> None:
    run = synthetic.make_run(cases=[f"case_{index}" for index in range(cases)])
    rows = [(4096 * (1 + place), one) for place, one in enumerate(run.results) if one.measurement and one.measurement.sol]
    drawn = roofline(rows)
    marks = re.findall(r'<path fill="[^"]*" fill-opacity=".8" d="([^"]*)"><title>([^<]*)</title></path>', drawn)
    places = {move for shape, _ in marks for move in re.findall(r"M[\d.]+ [\d.]+", shape)}
    assert len(places) > len(rows) / 3, "cases of thousands of different sizes have places of their own"
    if len(rows) <= MOST_NAMED:
        assert len(marks) == len(rows)
        assert all("of the speed of light" in said for _, said in marks)
    else:
        assert {said for _, said in marks} == {short_kernel(one.kernel) for _, one in rows}
        assert len(drawn) < 80 * len(rows)
