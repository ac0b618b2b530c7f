"""A peer that computes a part of its op, from the command line: listed as a part, timed, and compared with nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result as Outcome

Fusebench = Callable[..., Outcome]
pytestmark = pytest.mark.usefixtures("forked_workers")

PEER = """
from fusebench import kernel

@kernel("scale", "peer_absent", version=1, role="peer", language="torch", requires=("no_such_library",), install="no-such-library")
def peer_absent(x, *, factor=2.0):
    raise AssertionError("must not run")
"""


@pytest.fixture
def project(toy_project: Path) -> Path:
    """The toy project with a partial peer and one whose library is absent."""
    folder = toy_project / "kernels" / "scale"
    shutil.copy(toy_project / "part.py", folder / "part.py")
    (folder / "peer_absent.py").write_text(PEER)
    return toy_project


@pytest.mark.usefixtures("project")
def test_list_says_what_is_not_installed_and_what_is_a_part(fusebench: Fusebench) -> None:
    rows = {row["name"]: row for row in json.loads(fusebench("list", "kernels", "--device", "cpu", "--json").stdout)}
    absent = rows["peer_absent"]
    assert (absent["runnable"], absent["reason"]) == (False, "not installed: no_such_library (pip install no-such-library)")
    assert (absent["not_installed"], absent["requires"], absent["install"]) == (["no_such_library"], ["no_such_library"], "no-such-library")
    assert (rows["part"]["covers"], rows["split"]["covers"]) == ("copy only: no factor", "")
    text = " ".join(fusebench("list", "kernels", "--device", "cpu").stdout.split())
    assert "not installed: no_such_library" in text
    assert "covers copy only: no factor; planted" in text


@pytest.mark.usefixtures("project")
def test_a_run_times_the_part_and_compares_it_with_nothing(fusebench: Fusebench) -> None:
    quick = ["--suite", "scale", "--device", "cpu", "--cache", "warm", "--replicates", "2", "--rounds", "2"]
    outcome = fusebench("run", *quick, "--kernel", "*part", "--json")
    document = json.loads(outcome.stdout)
    rows = {(row["case"], row["kernel"]): row for row in document["results"]}
    part, wrong, split = (rows["even", f"scale/{name}@1"] for name in ("part", "wrong_part", "split"))
    assert (part["status"], part["covers"], part["reason"]) == ("measured", "copy only: no factor", "covers: copy only: no factor")
    assert part["time_us"] > 0
    assert part["gb_per_s"] > 0
    assert [part[key] for key in ("speedup", "speedup_ci", "sol", "verdict")] == [None] * 4
    assert (split["sol"] is None, split["covers"]) == (False, None)
    assert document["weighted_speedup"] == {"scale": {}}, "the baseline and parts alone give no speedup"
    assert document["suites"][0]["saved_us_per_step"] == {}
    assert (wrong["status"], wrong["verdict"]) == ("wrong", "error"), "a part is judged, by its own reference"
    assert outcome.exit_code == 0, "a peer is another library's to mend, and has no say"


@pytest.mark.usefixtures("project")
def test_check_names_the_part(fusebench: Fusebench) -> None:
    text = " ".join(fusebench("check", "--suite", "scale", "--device", "cpu", "--kernel", "part", "--case", "even").stdout.split())
    assert "covers: copy only" in text
