"""Runs of an unchanged project on this CPU, confirmed in fresh processes, call nothing slower or faster."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.run_bench import add_kernel

WARM = ("run", "--suite", "sizes", "--device", "cpu", "--cache", "warm", "--rounds", "30", "--no-evidence", "--json")
SIZES = {"small": 2**14, "large": 2**16}
SUITE = '[suite]\nname = "sizes"\ndescription = "d"\n' + "".join(
    f'\n[[case]]\nname = "{name}"\nop = "scale"\nparams = {{ size = {size} }}\nsource = "s"\n' for name, size in SIZES.items()
)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("runs", [40])
def test_runs_of_an_unchanged_project_raise_no_alarm(toy_project: Path, fusebench: Callable[..., Any], runs: int) -> None:
    add_kernel(toy_project, "chain", "x.copy_((x * 1.0) + 0.0)")  # temporaries, whose memory a process may get anew in every call
    (toy_project / "suites" / "sizes.toml").write_text(SUITE)
    assert fusebench(*WARM, "--processes", "8").exit_code == 0
    assert fusebench("baseline", "promote", "latest").exit_code == 0
    found: Counter[str] = Counter()
    for _ in range(runs):
        results = json.loads(fusebench(*WARM).stdout)["results"]
        found.update(one["verdict"] for one in results if one["status"] == "measured")
    assert found["pass"] > 0, f"{found}: nothing was decided"
    assert (found["regression"], found["improvement"]) == (0, 0), found
