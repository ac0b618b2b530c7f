"""What the markers conclude from figures, without a session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fusebench.pytest_plugin.figures import Figures
from fusebench.pytest_plugin.markers import UndecidedWarning, judge

SPLIT, FUSED = [20_000.0, 20_400.0, 19_800.0, 20_200.0], [10_000.0, 10_300.0, 9_800.0, 10_100.0]


def mark(name: str, /, **options: Any) -> SimpleNamespace:
    """As `pytest.mark` makes one where the plugin has registered it."""
    return SimpleNamespace(name=name, args=(), kwargs=options)


class FakeItem:
    """A test with markers, which keeps its warnings."""

    name = "test_fused"

    def __init__(self, *marks: SimpleNamespace) -> None:
        self.marks = marks
        self.warnings: list[Warning] = []

    def iter_markers(self, name: str) -> list[SimpleNamespace]:
        return [mark for mark in self.marks if mark.name == name]

    def warn(self, warning: Warning) -> None:
        self.warnings.append(warning)


def figures(**changes: Any) -> Figures:
    """Four placements of one round: a fused function of 10 us, a split one of 20 us, a yardstick of 5 us."""
    arms = {"fused": FUSED, "split": SPLIT, "stream": [span / 2 for span in FUSED]}
    spans = {arm: {(0, place): [span] for place, span in enumerate(found)} for arm, found in arms.items()}
    known: dict[str, Any] = {"arm": "fused", "spans": spans, "trim": 0.1, "minimum_bytes": 40_000, "over": "split"}
    return Figures(**(known | {"device": "NVIDIA H200", "timer": "cupti", "cache": "cold"} | changes))


def judged(item: FakeItem, found: Figures) -> None:
    judge(item, found, lambda over: over or "split", "look closer")  # type: ignore[arg-type]


def test_figures_are_paired_ratios() -> None:
    found = figures()
    speedup, sol = found.speedup(), found.sol
    assert speedup is not None
    assert sol is not None
    assert speedup.value == pytest.approx(2.0, rel=0.01)
    assert speedup.low < speedup.value < speedup.high
    assert sol.value == pytest.approx(0.5)
    assert found.gb_per_s == pytest.approx(40_000 / found.time_us().value / 1e3)
    assert found.seconds == [span * 1e-9 for span in FUSED]
    part = figures(whole=False)
    assert (part.speedup(), part.sol) == (None, None)


def test_a_limit_that_is_reached_passes() -> None:
    item = FakeItem(mark("speed", min_speedup=1.9), mark("sol", min=0.49))
    judged(item, figures())
    assert not item.warnings


def test_a_limit_above_the_whole_interval_fails_with_figure_limit_device_and_next_step() -> None:
    with pytest.raises(pytest.fail.Exception) as failure:
        judged(FakeItem(mark("speed", min_speedup=3)), figures())
    lines = str(failure.value).splitlines()
    assert lines[0] == "test_fused is slower than speed(min_speedup=3) allows"
    assert lines[1].startswith("  measured: 2.0")
    assert "as fast as split; 10.05 us a call (4 placements, timer cupti, cold cache)" in lines[1]
    assert lines[2:] == ["  asked:    at least 3.000x", "  device:   NVIDIA H200", "  next:     look closer"]


def test_a_limit_within_the_interval_is_a_warning() -> None:
    speedup = figures().speedup()
    assert speedup is not None
    item = FakeItem(mark("speed", min_speedup=(speedup.value + speedup.high) / 2))
    judged(item, figures())
    (warning,) = item.warnings
    assert isinstance(warning, UndecidedWarning)
    assert "--fusebench-replicates" in str(warning)


@pytest.mark.parametrize(
    ("asked", "changes", "said"),
    [
        (mark("sol", min=0.1), {"not_cold": "a planted reason"}, "the samples are not cold: a planted reason"),
        (mark("sol", min=80), {}, "write 0.8 for 80 %"),
        (mark("sol"), {}, "expected @pytest.mark.sol(min=NUMBER)"),
        (mark("speed", min_speedup="2x"), {}, "expected @pytest.mark.speed(min_speedup=NUMBER, over=...)"),
        (mark("speed", over=figures), {}, "@pytest.mark.speed(over=figures): expected @pytest.mark.speed("),
        (mark("speed", min_speedup=2, than="split"), {}, "than='split'"),
        (mark("speed", min_speedup=2), {"arm": "split"}, "nothing to compare with"),
        (mark("sol", min=0.5), {"whole": False}, "no speed of light"),
    ],
)
def test_what_cannot_be_judged_fails(asked: SimpleNamespace, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(pytest.fail.Exception) as failure:
        judged(FakeItem(asked), figures(**changes))
    assert said in str(failure.value)
