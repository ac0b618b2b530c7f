"""Workflows and scripts: well formed, with few rights, bounded in time, and safe from text that a pull request brings.

`actionlint` runs in the workflow `tests`; here the structure is checked, which needs no network.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
SCRIPTS = sorted((REPOSITORY / "ci").iterdir())
KEYS = {"name", "on", "permissions", "concurrency", "env", "jobs"}
JOB_KEYS = {"needs", "if", "runs-on", "timeout-minutes", "permissions", "env", "outputs", "strategy", "steps"}


def loaded(file: Path) -> dict[str, Any]:
    document = yaml.safe_load(file.read_text())
    return {("on" if key is True else key): value for key, value in document.items()}  # YAML 1.1 reads `on` as true


JOBS = [pytest.param(file, name, job, id=f"{file.stem}.{name}") for file in WORKFLOWS for name, job in loaded(file)["jobs"].items()]


def test_there_are_a_nightly_and_a_gate_of_pull_requests() -> None:
    assert {"nightly", "pull_request", "tests"} <= {file.stem for file in WORKFLOWS}


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_has_known_keys_and_may_only_read(file: Path) -> None:
    found = loaded(file)
    assert found.keys() <= KEYS
    assert found["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in found["on"], "it would run a fork's code with a token that may write"


@pytest.mark.parametrize(("file", "name", "job"), JOBS)
def test_a_job_is_bounded_and_its_steps_are_safe(file: Path, name: str, job: dict[str, Any]) -> None:
    assert job.keys() <= JOB_KEYS
    assert 0 < job["timeout-minutes"] <= 300
    needs = job.get("needs", [])
    assert set([needs] if isinstance(needs, str) else needs) <= loaded(file)["jobs"].keys()
    if "self-hosted" in job["runs-on"] and "pull_request" in loaded(file)["on"]:
        assert "head.repo.full_name == github.repository" in job["if"], "a fork's code must not run on one's own machine"
    for step in job["steps"]:
        assert ("run" in step) != ("uses" in step)
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])
            if step["uses"].startswith("actions/checkout"):
                assert step["with"]["persist-credentials"] is False
        else:
            assert "${{" not in step["run"], "text from outside goes through the environment, never into a script"
            subprocess.run(["bash", "-n"], input=step["run"], text=True, check=True)
            for script in re.findall(r"(?:^|\s)(\.?ci/\w+)", step["run"]):
                assert os.access(REPOSITORY / script, os.X_OK), script


def test_actionlint_knows_the_labels_of_the_runners() -> None:
    """It refuses a label that GitHub does not have, unless its own settings name it."""
    known = yaml.safe_load((REPOSITORY / ".github" / "actionlint.yaml").read_text())["self-hosted-runner"]["labels"]
    assert set(loaded(REPOSITORY / ".github" / "workflows" / "nightly.yml")["jobs"]["measure"]["strategy"]["matrix"]["gpu"]) <= set(known)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_is_executable_short_and_good_bash(script: Path) -> None:
    assert os.access(script, os.X_OK)
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert len(lines) <= 40, "logic belongs into fusebench.ci, where it is tested"
    subprocess.run(["bash", "-n", str(script)], check=True)


GH = """#!/usr/bin/env bash
printf '%s\\n' "$*" >> "$CALLS"
for word in "$@"; do case $word in body=@*) cat "${word#body=@}" >> "$BODY" ;; esac; done
case "$*" in *--paginate*) printf '%s' "$FOUND" ;; esac
"""


def posted(tmp_path: Path, found: str, *arguments: str) -> tuple[list[str], str]:
    (tmp_path / "bin").mkdir(exist_ok=True)
    gh = tmp_path / "bin" / "gh"
    gh.write_text(GH)
    gh.chmod(0o755)
    paths = {name: str(tmp_path / name) for name in ("CALLS", "BODY")}
    environment = os.environ | paths | {"PATH": f"{gh.parent}:{os.environ['PATH']}", "GITHUB_REPOSITORY": "o/r", "FOUND": found}
    subprocess.run([str(REPOSITORY / "ci" / "post"), *arguments], env=environment, check=True, capture_output=True)
    return (tmp_path / "CALLS").read_text().splitlines(), (tmp_path / "BODY").read_text()


def test_a_comment_is_made_once_and_then_updated(tmp_path: Path) -> None:
    text = "<!-- fusebench:pull-request -->\n\nhello `x`\n"
    (tmp_path / "comment.md").write_text(text)
    calls, body = posted(tmp_path, "", "comment", str(tmp_path / "comment.md"), "7")
    assert calls[1].startswith("api --method POST repos/o/r/issues/7/comments ")
    assert body == text
    calls, _ = posted(tmp_path, "41\n42\n", "comment", str(tmp_path / "comment.md"), "7")
    assert calls[3].startswith("api --method PATCH repos/o/r/issues/comments/41 ")


def test_an_issue_takes_its_title_from_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "issue.md").write_text("# Nightly: x slower\n\n<!-- fusebench:nightly:nvidia_h200 -->\n\nbody\n")
    calls, body = posted(tmp_path, "", "issue", str(tmp_path / "issue.md"))
    assert "--method POST repos/o/r/issues --raw-field title=Nightly: x slower" in calls[1]
    assert body.strip() == "<!-- fusebench:nightly:nvidia_h200 -->\n\nbody"
    calls, _ = posted(tmp_path, "9", "issue", str(tmp_path / "issue.md"))
    assert "--method PATCH repos/o/r/issues/9 " in calls[3]


def test_a_text_without_a_marker_is_not_posted(tmp_path: Path) -> None:
    (tmp_path / "comment.md").write_text("hello\n")
    with pytest.raises(subprocess.CalledProcessError):
        posted(tmp_path, "", "comment", str(tmp_path / "comment.md"), "7")
    assert not (tmp_path / "CALLS").exists()
