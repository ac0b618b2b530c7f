from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import Result

from fusebench.schema import Status

FUSED = "qknorm_rope/fused_triton@2"
Fusebench = Callable[..., Result]
Keep = Callable[..., Path]

_fixtures = runpy.run_path(str(Path(__file__).with_name("run_fixtures.py")))
keep, project_folder, synthetic = (_fixtures[name] for name in ("keep", "project_folder", "synthetic"))


@pytest.fixture
def baseline(keep: Keep, fusebench: Fusebench) -> str:
    folder = keep(run_id="base", created="2026-07-01T00:00:00Z")
    assert fusebench("baseline", "promote", str(folder)).exit_code == 0
    return "base"


@pytest.mark.usefixtures("baseline")
@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({}, 0, "30 pass"),
        ({"slow": 1.1}, 1, "slower beyond the 3.0% margin"),
        ({"slow": 1.03}, 4, "measure with more replicates"),
        ({"errors": 1.3}, 1, "accuracy: rms error"),
        ({"status": (Status.CRASHED, "boom")}, 5, "crashed: boom"),
        ({"timer": "cuda_events"}, 4, "timer: cupti -> cuda_events"),
        ({"cases": ("flux_1024",)}, 4, "24 of the baseline's are missing"),
        ({"exit_code": 3}, 3, "30 pass"),
    ],
)
def test_exit_code_says_what_happened(keep: Keep, fusebench: Fusebench, change: dict[str, object], code: int, said: str) -> None:
    planted = {name: {("flux_1024", FUSED): value} if name in ("slow", "errors", "status") else value for name, value in change.items()}
    keep(run_id="new", **planted)
    result = fusebench("gate", "new")
    assert (result.exit_code, said in result.stdout) == (code, True), result.output


@pytest.mark.usefixtures("baseline")
def test_what_is_incomparable_can_be_allowed(keep: Keep, fusebench: Fusebench) -> None:
    keep(run_id="new", timer="cuda_events")
    assert fusebench("gate", "new", "--allow-incomparable").exit_code == 0


@pytest.mark.usefixtures("baseline")
def test_the_margin_can_be_widened_and_must_make_sense(keep: Keep, fusebench: Fusebench, synthetic: ModuleType) -> None:
    keep(run_id="new", slow={("flux_1024", synthetic.FUSED): 1.06})
    assert fusebench("gate", "new").exit_code == 1
    assert fusebench("gate", "new", "--margin", "0.1").exit_code == 0
    refused = fusebench("gate", "new", "--margin", "3")
    assert (refused.exit_code, "0.03 for 3 %" in refused.stderr) == (2, True)


@pytest.mark.usefixtures("baseline")
def test_json_is_the_only_thing_on_stdout(keep: Keep, fusebench: Fusebench, synthetic: ModuleType) -> None:
    keep(run_id="new", slow={("flux_1024", synthetic.FUSED): 1.1}, exit_code=3)
    result = fusebench("gate", "new", "--json")
    document = json.loads(result.stdout)
    assert (document["run"], document["baseline"], document["exit_code"]) == ("new", "base", result.exit_code)
    assert [row["kernel"] for row in document["judgements"] if row["verdict"] == "regression"] == [synthetic.FUSED]


def test_without_a_baseline_it_is_undecided_and_says_what_to_do(keep: Keep, fusebench: Fusebench) -> None:
    keep(run_id="new")
    result = fusebench("gate", "latest", "--json")
    assert (result.exit_code, json.loads(result.stdout)["exit_code"]) == (4, 4)
    assert "no baseline for NVIDIA H200" in result.stderr
    assert "fusebench baseline promote" in result.stderr


def test_any_run_can_be_the_baseline(keep: Keep, fusebench: Fusebench, synthetic: ModuleType) -> None:
    keep(run_id="old", created="2026-07-01T00:00:00Z")
    keep(run_id="new", slow={("flux_1024", synthetic.FUSED): 1.1})
    assert fusebench("gate", "latest", "--baseline", "old").exit_code == 1


def test_bad_input_gets_one_line_and_exit_code_2(keep: Keep, fusebench: Fusebench) -> None:
    folder = keep(run_id="abc")
    unknown = fusebench("gate", "abd")
    assert (unknown.exit_code, unknown.stderr.count("\n"), "did you mean 'abc'" in unknown.stderr) == (2, 1, True)
    record = folder / "run.json"
    record.write_text(json.dumps({"schema_version": 99}))
    newer = fusebench("gate", "abc")
    assert (newer.exit_code, "schema version 99 is newer" in newer.stderr) == (2, True)
    record.write_text('{"schema_version": 1, "id"')
    truncated = fusebench("gate", "abc")
    assert (truncated.exit_code, "truncated or garbled" in truncated.stderr) == (2, True)


@pytest.mark.usefixtures("baseline")
def test_reading_commands_import_nothing_heavy(keep: Keep, project_folder: Path) -> None:
    keep(run_id="new")
    script = (
        "import sys\n"
        "from fusebench.cli.main import app\n"
        "for words in (['gate', 'new'], ['compare', 'base', 'new'], ['report', 'new', '--format', 'md'], ['baseline', 'show']):\n"
        "    try:\n"
        "        app(words)\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 0, (words, end.code)\n"
        "heavy = {'torch', 'triton', 'pandas', 'matplotlib', 'pyarrow', 'scipy', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, cwd=project_folder, timeout=60)
