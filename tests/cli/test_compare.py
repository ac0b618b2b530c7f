from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import Result


def test_compare_informs_and_does_not_judge(keep: Callable[..., Path], fusebench: Callable[..., Result], synthetic: ModuleType) -> None:
    keep(run_id="old", created="2026-07-01T00:00:00Z")
    keep(run_id="new", slow={("flux_1024", synthetic.FUSED): 1.1})
    result = fusebench("compare", "old", "new")
    assert result.exit_code == 0
    line = next(line for line in result.stdout.splitlines() if "flux_1024" in line and "fused_triton@2" in line)
    assert all(figure in line for figure in ("28.08", "30.89", "1.90x", "1.73x", "+10.0 %"))


def test_compare_json_is_one_document(keep: Callable[..., Path], fusebench: Callable[..., Result]) -> None:
    keep(run_id="old", created="2026-07-01T00:00:00Z")
    keep(run_id="new", environment={"torch": "2.13.0"})
    document = json.loads(fusebench("compare", "old", "new", "--json").stdout)
    assert (document["old"], document["new"], document["differences"]) == ("old", "new", ["torch: 2.11.0 -> 2.13.0"])
    assert len(document["rows"]) == 30


def test_compare_names_the_run_that_cannot_be_read(keep: Callable[..., Path], fusebench: Callable[..., Result]) -> None:
    keep(run_id="old")
    result = fusebench("compare", "old", "no/such/run")
    assert (result.exit_code, "no such folder" in result.stderr) == (2, True)


@pytest.mark.parametrize("bad", ["old", "new"])
def test_a_record_that_no_measurement_gives_is_named(
    keep: Callable[..., Path], fusebench: Callable[..., Result], synthetic: ModuleType, bad: str
) -> None:
    folders = {"old": keep(run_id="old", created="2026-07-01T00:00:00Z"), "new": keep(run_id="new")}
    record = synthetic.as_version_2(folders[bad])
    content = json.loads(record.read_text())
    content["results"][0]["measurement"]["time_us"]["value"] = "nan"
    record.write_text(json.dumps(content))
    result = fusebench("compare", "old", "new")
    assert (result.exit_code, result.stdout, f"run {bad} cannot be judged" in result.stderr, "time_us is nan" in result.stderr) == (
        2, "", True, True,
    )  # fmt: skip
