"""Where an evaluation's time went."""

from __future__ import annotations

import time

from fusebench.judge.phases import Phases


def test_phases_add_up_and_an_inner_one_is_not_its_outer_ones() -> None:
    phases = Phases()
    began = time.monotonic()
    with phases.timed("outer"):
        time.sleep(0.02)
        with phases.timed("inner"):
            time.sleep(0.03)
        with phases.timed("inner"):
            pass
    whole, found = time.monotonic() - began, phases.seconds()
    assert found["inner"] >= 0.029
    assert found["outer"] >= 0.019
    assert sum(found.values()) <= whole + 0.002
