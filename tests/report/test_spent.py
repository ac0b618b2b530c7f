"""Where a run's time went is one line, the most first, and adds up."""

from __future__ import annotations

from typing import Any

import msgspec

from fusebench.report.run.summary import spending_lines
from fusebench.schema import Spending


def test_phases_and_the_rest_add_up_to_the_total(synthetic: Any) -> None:
    spending = Spending(
        total_s=100.0,
        phases_s={"timed rounds": 60.0, "accuracy checks": 30.0, "inputs": 0.01},
        kernels_s={"scale/slow@1": 12.0, "scale/fast@1": 0.2},
    )
    lines = spending_lines(msgspec.structs.replace(synthetic.make_run(), spending=spending))
    assert lines == [
        "time spent: 100.0 s (timed rounds 60.0 s; accuracy checks 30.0 s; the rest 10.0 s)",
        "slowest to check and compile: slow@1 of scale 12.0 s",
    ]


def test_a_record_of_before_says_nothing(synthetic: Any) -> None:
    assert spending_lines(msgspec.structs.replace(synthetic.make_run(), spending=None)) == []


def test_boards_that_work_at_the_same_time_spend_more_than_the_run_took(synthetic: Any) -> None:
    run = synthetic.make_run()
    spending = Spending(total_s=50.0, phases_s={"timed rounds": 60.0, "accuracy checks": 30.0}, kernels_s={})
    several = msgspec.structs.replace(run, spending=spending, environment=msgspec.structs.replace(run.environment, device_uuid="a,b"))
    assert spending_lines(several) == ["time spent: 50.0 s (2 boards together: timed rounds 60.0 s; accuracy checks 30.0 s)"]
