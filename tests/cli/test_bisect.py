"""`fusebench bisect`: repositories made here, searched from the command line; times are scripted but in the last test."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result as Outcome

from fusebench.fleet import probing
from fusebench.registry import load_collection
from fusebench.runner.session import Outcome as Session
from fusebench.schema import ExitCode, Role, Status, Verdict, VerdictKind
from fusebench.store.bisection_record import read_bisection
from fusebench.store.comparison_record import ComparedKernel, RevisionPresence
from helpers import simulate
from helpers.kills import interrupted_lock

from .test_ab import commit, git

Fusebench = Callable[..., Outcome]
Search = Callable[..., tuple[int, dict[str, Any]]]
pytestmark = pytest.mark.usefixtures("forked_workers")
NOISE = simulate.DURATIONS[2]
KERNEL = """from fusebench import kernel


@kernel("scale", "{name}", version=1, role="fused", language="torch")
def {name}(x, *, factor=2.0):
    {body}
    x.mul_(factor)
"""
BROKEN = "x.mul_("


def write(project: Path, body: str, name: str = "plain") -> None:
    (project / "kernels" / "scale" / f"{name}.py").write_text(KERNEL.format(name=name, body=body))


def step(project: Path, body: str, subject: str = "change") -> str:
    """A commit whose kernel has this body; its name."""
    write(project, body)
    commit(project, subject)
    return git(project, "rev-parse", "HEAD")


def level(number: int, size: float = 0.0) -> str:
    """A body of scripted speed, different for every number."""
    return f"pass  # {number}: level {size}"


@pytest.fixture
def project(toy_project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit that holds `scale/plain@1`."""
    monkeypatch.setenv("FUSEBENCH_LOCK_DIR", str(toy_project.parent / "locks"))
    (toy_project / ".gitignore").write_text("results/\n__pycache__/\n")
    git(toy_project, "init", "-q", "-b", "main")
    step(toy_project, level(0), "the kernel")
    return toy_project


class Scripted:
    """Comparisons without a measurement: the body of each kernel says how slow it is."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.before: Callable[[str], None] = lambda head: None

    def measure(self, request: Any, reporter: Any) -> Session[Any]:
        head, base = request.head_commit, request.base.revision.commit
        self.asked.append((head, base))
        self.before(head)
        texts = [(roots[0] / "scale" / "plain.py").read_text() for roots in (request.collection.roots, request.base.roots)]
        one = self._compared(texts, request.options.looks)
        reporter.line(f"{head[:7]}: {one.verdict.kind}")
        return Session(record=type("Record", (), {"kernels": [one]})(), folder=Path(f"{len(self.asked)}_ab"))

    def _compared(self, texts: list[str], plan: Any) -> ComparedKernel:
        known: dict[str, Any] = {
            "case": "even",
            "suite": "scale",
            "op": "scale",
            "kernel": "scale/plain@1",
            "role": Role.FUSED,
            "presence": RevisionPresence.BOTH,
            "changed_files": ("scale/plain.py",),
            "new_status": Status.CHECKED,
            "old_status": Status.CHECKED,
        }
        if "wrong" in texts[0]:
            reason = "off by half"
            return ComparedKernel(**known | {"new_status": Status.WRONG, "verdict": Verdict(kind=VerdictKind.ERROR, reason=reason)})
        sizes = [1 + float(found[1]) if (found := re.search(r"level ([\d.-]+)", text)) else 1.0 for text in texts]
        found = simulate.compare(NOISE, sizes[0] / sizes[1] - 1, 1, len(self.asked), plan)
        verdict = Verdict(kind=found.verdicts[0], reason=found.first[0].reason, change=found.first[0].change)
        times = {"new_us": 12.0 * sizes[0], "old_us": 12.0 * sizes[1]}
        return ComparedKernel(**known, **times, finding=found.first[0], confirmation=found.confirmations[0], verdict=verdict)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    script = Scripted()
    monkeypatch.setattr(probing, "measure_comparison", script.measure)

    def declared(roots: Any, cases: Any) -> Any:
        collection = load_collection(roots, entry_points=False)
        collection.close = lambda: None  # type: ignore[attr-defined]
        return collection

    monkeypatch.setattr("fusebench.fleet.checkouts.declared_base", declared)
    return script


@pytest.fixture
def search(fusebench: Fusebench) -> Search:
    """`search("--good", ...)`: exit code and document."""

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        outcome = fusebench("bisect", "--suite", "scale", "--case", "even", "--kernel", "plain", "--device", "cpu", *arguments, "--json")
        if not outcome.stdout.startswith("{"):
            return outcome.exit_code, {"error": outcome.output}
        return outcome.exit_code, json.loads(outcome.stdout) | {"stderr": outcome.stderr}

    return run


def history(project: Path, sizes: list[float]) -> list[str]:
    """The first commit, then one of each size."""
    first = git(project, "rev-parse", "HEAD")
    return [first, *(step(project, level(number + 1, size), f"step {number + 1}") for number, size in enumerate(sizes))]


def test_the_commit_is_found_and_the_issue_says_all(project: Path, scripted: Scripted, search: Search, fusebench: Fusebench) -> None:
    names = history(project, [0.0, 0.0, 0.0, 0.0, 0.3, 0.3, 0.3, 0.3])
    (project / "README").write_text("no kernel\n")
    commit(project, "no kernel")
    code, document = search("--good", names[0], "--bad", "HEAD")
    assert (code, document["exit_code"], document["complete"]) == (0, 0, True), document
    assert document["found"]["commit"] == names[5]
    assert (document["found"]["subject"], document["found"]["author"], document["found"]["merge"]) == ("step 5", "Test", False)
    assert document["change_ci"][0] < 1.3 < document["change_ci"][1]
    assert document["commits"] == 9
    # Both ends, three steps among eight groups, the commit against its predecessor.
    assert (len(scripted.asked), scripted.asked[0], scripted.asked[-1]) == (5, (names[8], names[0]), (names[5], names[4]))
    assert document["measured"] == 5
    (folder,) = (project / "results" / "runs").iterdir()
    issue = (folder / "issue.md").read_text()
    assert issue == document["issue"]
    for text in (names[5], "step 5", "Test, 20", "5 commits measured", f"--exact --base {names[4]}", "<!-- fusebench:bisect:scale/plain@1"):
        assert text in issue
    assert issue.startswith(f"# scale/plain@1 became slower: {names[5][:12]}\n")
    assert read_bisection(folder).complete


def test_commits_that_do_not_load_or_are_wrong_are_passed_by_and_widen_the_answer(
    project: Path, scripted: Scripted, search: Search
) -> None:
    first, fast = history(project, [0.0])
    broken, wrong = step(project, BROKEN, "broken"), step(project, "pass  # wrong", "wrong")
    slow = history(project, [0.3])[1]
    code, document = search("--good", first, "--bad", slow)
    assert code == ExitCode.UNDECIDED
    assert [one["commit"] for one in document["suspects"]] == [broken, wrong, slow]
    assert document["found"] is None
    assert "one of 3 commits did it" in document["reason"]
    sides = {one["commit"]: (one["side"], one["failed"]) for one in document["probes"]}
    assert sides[broken] == sides[wrong] == ("untestable", True)
    assert sides[fast] == ("fast", False)
    assert all(head != broken for head, _ in scripted.asked)
    later = history(project, [0.301, 0.302])[-1]
    assert search("--good", first, "--bad", later)[1]["suspects"] == document["suspects"]


def test_equal_sources_are_not_measured(project: Path, scripted: Scripted, search: Search) -> None:
    names = history(project, [0.0])
    for number in range(4):  # another kernel changes
        write(project, f"pass  # {number}", "other")
        commit(project, f"other {number}")
    names += history(project, [0.3])[1:]
    code, document = search("--good", names[0], "--bad", "HEAD")
    assert (code, document["found"]["commit"]) == (0, names[-1])
    assert {head for head, _ in scripted.asked} <= {names[1], names[-1], *(one["commit"] for one in document["probes"])}
    assert [one["basis"] for one in document["probes"]].count("identical source") >= 1
    assert len(scripted.asked) <= 3


def test_half_of_the_slowdown_leads_to_the_commit_that_brought_it(project: Path, scripted: Scripted, search: Search) -> None:
    names = history(project, [0.0, 0.0, 0.2, 0.2, 0.2, 0.44, 0.44])
    code, document = search("--good", names[0])
    assert (code, document["found"]["commit"] in (names[3], names[6])) == (0, True)
    assert document["change"] == pytest.approx(1.2, abs=0.02)


def test_ends_that_do_not_differ_are_undecided(project: Path, scripted: Scripted, search: Search) -> None:
    names = history(project, [0.0, 0.0, 0.0])
    code, document = search("--good", names[0])
    assert (code, document["suspects"], len(scripted.asked)) == (ExitCode.UNDECIDED, [], 1)
    assert "not shown to be slower" in document["reason"]
    assert all(f"note: loading the kernels of commit {name[:12]}\n" in document["stderr"] for name in (names[0], names[3]))


def test_a_kernel_that_fails_at_an_end_is_its_own_exit_code(project: Path, scripted: Scripted, search: Search) -> None:
    names = history(project, [0.0])
    step(project, "pass  # wrong")
    code, document = search("--good", names[0])
    assert (code, "off by half" in document["reason"]) == (ExitCode.KERNEL_FAILED, True)
    step(project, BROKEN)
    code, document = search("--good", names[0])
    assert (code, "was never closed" in document["error"]) == (ExitCode.KERNEL_FAILED, True)


@pytest.mark.parametrize("how", ["interrupted", "at a lock"])
def test_a_search_that_was_interrupted_keeps_its_answers_and_goes_on(
    project: Path, scripted: Scripted, search: Search, fusebench: Fusebench, how: str
) -> None:
    names = history(project, [0.0, 0.0, 0.3, 0.3, 0.3, 0.3, 0.3])

    def interrupt(head: str) -> None:
        if len(scripted.asked) == 3 and how == "at a lock":
            interrupted_lock()
        if len(scripted.asked) == 3:
            raise KeyboardInterrupt

    scripted.before = interrupt
    code, document = search("--good", names[0])
    assert (code, len(scripted.asked)) == (130, 3)
    (folder,) = (project / "results" / "runs").iterdir()
    stopped = read_bisection(folder)
    assert (stopped.complete, len(stopped.probes), stopped.exit_code) == (False, 2, ExitCode.UNDECIDED)
    assert "one of" in stopped.reason
    assert not any("fault" in warning for warning in stopped.warnings)
    asked = list(scripted.asked)
    code, document = search("--good", names[1], "--resume", "latest")
    assert (code, "differs in good" in document["error"]) == (ExitCode.USAGE, True)
    code, document = search("--good", names[0], "--resume", "latest")
    assert (code, document["found"]["commit"], Path(document["search"])) == (0, names[3], folder)
    assert not set(asked[:2]) & set(scripted.asked[3:])
    code, document = search("--good", names[0], "--resume", "latest")
    assert (code, "is complete" in document["error"]) == (ExitCode.USAGE, True)


def test_a_spent_budget_leaves_a_range(project: Path, scripted: Scripted, search: Search) -> None:
    names = history(project, [0.0, 0.3, 0.3])
    code, document = search("--good", names[0], "--budget", "1")
    assert (code, document["complete"]) == (ExitCode.UNDECIDED, False)
    assert "the budget of 1 s is spent" in document["reason"]
    assert scripted.asked == []


def test_ends_that_cannot_be_searched_between_are_refused(project: Path, scripted: Scripted, search: Search) -> None:
    names = history(project, [0.0])
    git(project, "mv", "kernels", "moved")
    (project / "pyproject.toml").write_text('[tool.fusebench]\nkernels = ["moved"]\n')
    commit(project, "move the folder")
    moved = git(project, "rev-parse", "HEAD")
    code, document = search("--good", names[0])
    assert (code, "has no folder moved: was it moved or renamed?" in document["error"]) == (ExitCode.USAGE, True)
    assert f"{moved[:12]} to {moved[:12]}" in document["error"]
    for arguments, words in (
        (("--good", "HEAD", "--bad", names[0]), "are swapped"),
        (("--good", "HEAD"), "are the same commit"),
        (("--good", "mian"), "did you mean 'main'"),
    ):
        code, document = search(*arguments)
        assert (code, words in document["error"]) == (ExitCode.USAGE, True), document
    (project / "README").write_text("no kernel\n")
    commit(project, "no kernel")
    code, document = search("--good", moved)
    assert (code, "is the same in" in document["error"]) == (ExitCode.USAGE, True)


def test_the_op_in_the_kernels_id_chooses_among_cases_of_one_name(project: Path, scripted: Scripted, fusebench: Fusebench) -> None:
    other = project / "kernels" / "copy" / "op.py"
    other.parent.mkdir()
    op = (project / "kernels" / "scale" / "op.py").read_text()
    other.write_text(op.replace('name = "scale"', 'name = "copy"').replace("parts =", "_ ="))
    suite = (project / "suites" / "scale.toml").read_text()
    (project / "suites" / "copy.toml").write_text(suite.replace('"scale"', '"copy"'))
    commit(project, "an op whose suite has a case of the same name")
    names = history(project, [0.2])
    asked = ("bisect", "--case", "even", "--good", names[0], "--device", "cpu")
    both = fusebench(*asked, "--kernel", "plain")
    assert (both.exit_code, "names 2 cases" in both.stderr) == (ExitCode.USAGE, True), both.output
    found = fusebench(*asked, "--kernel", "scale/plain@1")
    assert (found.exit_code, names[1][:7] in found.stdout) == (ExitCode.PASS, True), found.output


def test_a_merge_stands_for_what_it_merged_and_a_side_branch_starts_at_the_merge_base(
    project: Path, scripted: Scripted, search: Search
) -> None:
    names = history(project, [0.0])
    git(project, "checkout", "-q", "-b", "side")
    (project / "kernels" / "other.txt").write_text("side\n")
    commit(project, "on the side")
    slow = step(project, level(50, 0.3), "slow, on the side")
    git(project, "checkout", "-q", "main")
    (project / "kernels" / "note.txt").write_text("main\n")
    commit(project, "on main")
    main = git(project, "rev-parse", "HEAD")
    git(project, "merge", "-q", "--no-ff", "-m", "merge the side", "side")
    merge = git(project, "rev-parse", "HEAD")
    code, document = search("--good", names[0])
    assert (code, document["found"]["commit"], document["found"]["merge"]) == (0, merge, True)
    assert f"--bad {slow[:12]}" in document["issue"]
    code, document = search("--good", main, "--bad", "side")
    assert (code, document["found"]["commit"]) == (0, slow)
    assert any("merge base" in warning for warning in document["warnings"])


@pytest.mark.exhaustive
def test_a_real_slowdown_is_found_on_a_cpu(project: Path, search: Search) -> None:
    names = [git(project, "rev-parse", "HEAD"), step(project, "pass  # a comment"), step(project, BROKEN), step(project, "pass  # mended")]
    names += [step(project, "for _ in range(30): x.mul_(1.0)", "many launches"), step(project, "for _ in range(30): x.mul_(1.0)  # still")]
    code, document = search("--good", names[0], "--cache", "warm")
    assert (code, document["found"]["commit"]) == (0, names[4]), document
    assert document["change_ci"][0] > 2
    (folder,) = (project / "results" / "runs").iterdir()
    assert len(list((folder / "comparisons").iterdir())) == len([one for one in document["probes"] if one["comparison"]]) + 1
