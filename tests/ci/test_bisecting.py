"""After a red nightly, one command searches for the commit and writes it into the nightly's issue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusebench.ci.bisecting import bisect_nightly, exit_code_of, issue_part, read_outcome, slowest
from fusebench.ci.findings import Judged
from fusebench.ci.outcome import JobOutcome
from fusebench.errors import UsageError
from fusebench.schema import ExitCode


def judged(case: str, change: float | None, *, gating: bool = True, verdict: str = "regression") -> Judged:
    return Judged(
        kernel="scale/plain@1", case=case, verdict=verdict, gating=gating, reason="", change=change, by="gate", reproduce="fusebench run"
    )


def outcome(*found: Judged, commits: str = "aaa..bbb", job: str = "nightly") -> JobOutcome:
    return JobOutcome(job=job, device="NVIDIA H200", exit_code=1, lines=[], steps=[], judged=list(found), commits=commits)


def test_the_largest_gating_regression_of_speed_is_searched_for(script: Any) -> None:
    found = outcome(
        judged("s:small", 1.02), judged("s:large", 1.05), judged("s:advisory", 1.5, gating=False), judged("s:inaccurate", None),
        judged("s:failed", None, verdict="error"),
    )  # fmt: skip
    document = {
        "reason": "commit ccc did it",
        "issue": "# scale/plain@1 became slower: ccc\n\n<!-- fusebench:bisect:x -->\n\nCommit `ccc`.\n",
    }
    script.says("bisect", document=document)
    step, said = bisect_nightly(found, script.steps(), options=["--device", "cuda"])
    wanted = "bisect --suite s --case s:large --kernel scale/plain@1 --good aaa --bad bbb --device cuda --json"
    assert script.calls == [wanted.split()]
    assert said == "scale/plain@1 on s:large: commit ccc did it"
    assert (step is not None, exit_code_of(step)) == (True, ExitCode.PASS)
    part = issue_part(document)
    assert part.startswith("\n## scale/plain@1 became slower: ccc\n")
    assert "<!--" not in part  # a second marker would be the issue's own
    assert "Commit `ccc`." in part


def test_without_a_regression_of_speed_nothing_is_searched(script: Any) -> None:
    for found, words in (
        (outcome(judged("s:inaccurate", None), judged("s:faster", 0.9)), "no gating regression of speed"),
        (outcome(judged("s:large", 1.05), commits=""), "does not say the commits"),
    ):
        step, said = bisect_nightly(found, script.steps(), options=[])
        assert (step, exit_code_of(step), words in said) == (None, ExitCode.PASS, True)
    assert script.calls == []
    assert slowest(outcome()) is None
    assert issue_part(None) == ""


def test_only_a_nightly_is_searched(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_outcome(tmp_path)
    for job in ("nightly", "pull request"):
        (tmp_path / "outcome.json").write_bytes(msgspec.json.encode(outcome(job=job)))
        if job == "nightly":
            assert read_outcome(tmp_path).commits == "aaa..bbb"
            continue
        with pytest.raises(UsageError, match="is of the pull request"):
            read_outcome(tmp_path)
