"""README and guides tell the truth: their commands run and their figures are the stored records'."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fusebench.cli.main import app
from fusebench.models.catalogue import MODELS
from fusebench.models.stored import explained_today
from fusebench.report.steps import step_pages, steps_markdown
from fusebench.schema import Run
from fusebench.schema.models import ModelRecord
from fusebench.store.history_file import KeptRun
from fusebench.store.model_folder import newest_models

REPOSITORY = Path(__file__).parents[1]
pytestmark = pytest.mark.usefixtures("forked_workers", "forked_compilers")
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
# These guides have tests of their own, which also run their errors and their files.
COMMANDS = [
    (page.name, command)
    for page in PAGES
    if page.name not in ("suites.md", "your_repository.md")
    for command in re.findall(r"^\$ fusebench (.*)$", page.read_text(), re.MULTILINE)
]


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_every_command_shown_with_a_prompt_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, page: str, command: str) -> None:
    monkeypatch.chdir(REPOSITORY)
    kept_elsewhere = ["--out", str(tmp_path)] if command.startswith("model ") else []
    result = CliRunner().invoke(app, [*shlex.split(command), *kept_elsewhere])
    assert result.exit_code == 0, f"{page}: fusebench {command}\n{result.output}"
    assert result.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_subcommand_and_option_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`fusebench ([a-z]+)([^`]*)`", page.read_text())
    for command, rest in named:
        shown = CliRunner().invoke(app, [command, "--help"], terminal_width=200)
        assert shown.exit_code == 0, f"{page.name} names `fusebench {command}`"
        pages = [shown.output]
        subcommands = {"baseline": ("promote", "show"), "catalogue": ("show", "query", "publish", "rebuild", "merge"), "suite": ("random",)}
        pages += [CliRunner().invoke(app, [command, sub, "--help"], terminal_width=200).output for sub in subcommands.get(command, ())]
        for option in re.findall(r"--[a-z-]+", rest):
            assert any(option in page_ for page_ in pages), f"{page.name}: `fusebench {command}` has no {option}"


def test_the_published_cases_are_the_stored_baselines() -> None:
    """Rows and weighted speedups are those of the suite's page, which the stored baseline makes."""
    page = (REPOSITORY / "docs" / "results_h200.md").read_text()
    source, table = re.search(r"<!-- table: (\S+) -->\n(.*?)<!-- end of table -->", page, re.DOTALL).groups()  # type: ignore[union-attr]
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 5, "a header, its rule and the five published cases"
    of_suite = (REPOSITORY / "docs" / source).read_text()
    assert "\n".join(rows) in of_suite, "one table, with its own header"
    speedup = next(line for line in of_suite.splitlines() if line.startswith("**Weighted speedup of qknorm_rope"))
    assert speedup in table


def test_the_tables_of_a_page_are_those_of_the_report() -> None:
    page = (REPOSITORY / "docs" / "results_h100.md").read_text()
    blocks = re.findall(r"<!-- report: (\S+) -->\n(.*?)<!-- end of report -->", page, re.DOTALL)
    assert len(blocks) == 2
    for folder, block in blocks:
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len(rows) >= 2 + 5
        assert [row for row in rows if row not in _report(folder)] == []


def test_the_savings_are_the_stored_baselines() -> None:
    page = (REPOSITORY / "docs" / "results_h200.md").read_text()
    source, table = re.search(r"<!-- savings: (\S+) -->\n(.*?)<!-- end of savings -->", page, re.DOTALL).groups()  # type: ignore[union-attr]
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 9, "a header, its rule and nine models"
    assert "\n".join(rows) in (REPOSITORY / "docs" / source).read_text(), "one table, with its own header"


def test_how_often_torch_compile_is_faster_is_what_the_stored_baseline_says() -> None:
    said = next(line for line in _report("results/baselines/nvidia_h200") if line.startswith("torch.compile is faster"))
    count = re.search(r"\d+ of \d+ cases", said)
    assert count is not None
    for page in ("README.md", "docs/results_h200.md"):
        assert count[0] in " ".join((REPOSITORY / page).read_text().split())


def test_the_page_of_evidence_shows_stored_counters() -> None:
    """Rows and sentences between its marks stand in the stored reports, and so do the figures of its own table."""
    page = (REPOSITORY / "docs" / "why_faster.md").read_text()
    blocks = re.findall(r"<!-- from: (\S+) -->\n(.*?)<!-- end -->", page, re.DOTALL)
    assert len(blocks) == 4
    for source, block in blocks:
        stored = (REPOSITORY / source).read_text().splitlines()
        assert [line for line in block.splitlines() if line not in stored] == []
    counted = (REPOSITORY / blocks[0][0]).read_text()
    (own,) = re.findall(r"^\| time under Nsight Compute .*$", page, re.MULTILINE)
    times = re.findall(r"[\d.]+ us", own)
    assert len(times) == 4
    assert [one for one in times if one not in counted] == []


def test_the_pages_of_results_are_those_of_the_stored_baseline() -> None:
    """`fusebench report results/baselines/nvidia_h200 --format pages --out docs/results` makes them anew."""
    from fusebench.report.run.pages import suite_pages
    from fusebench.store.calibration_note import with_calibration
    from fusebench.store.run_folder import read_run

    results = REPOSITORY / "results"
    pages = suite_pages(with_calibration(read_run(results / "baselines" / "nvidia_h200"), results), pictures=False)
    folder = REPOSITORY / "docs" / "results"
    assert set(pages) == {file.name for file in folder.glob("*.md")}
    assert [name for name, content in pages.items() if (folder / name).read_bytes() != content] == []


def test_the_pages_of_random_shapes_are_those_of_the_stored_runs() -> None:
    """`fusebench report results/random/NAME --format limits --out docs/results/random/NAME.md` makes one anew.

    A stored run is its folder without samples and views.
    """
    from fusebench.report.run.limits import limits_markdown
    from fusebench.store.calibration_note import with_calibration
    from fusebench.store.run_folder import read_run

    results, folder = REPOSITORY / "results", REPOSITORY / "docs" / "results" / "random"
    stored = {file.parent.name: read_run(file.parent) for file in (results / "random").glob("*/run.json")}
    pages = {f"{name}.md": limits_markdown(with_calibration(run, results), picture=f"{name}.png") for name, run in stored.items()}
    assert set(pages) == {file.name for file in folder.glob("*.md")}
    assert [name for name, text in pages.items() if (folder / name).read_text() != text] == []
    assert {f"{name}.png" for name in stored} == {file.name for file in folder.glob("*.png")}


def test_the_pages_of_steps_are_those_of_the_stored_models() -> None:
    """`fusebench report results/models --format pages --out docs/results/steps` makes them anew, also after another baseline is stored."""
    folder = REPOSITORY / "docs" / "results" / "steps"
    pages = step_pages(_stored_models(), pictures=False)
    assert set(pages) == {file.name for file in folder.glob("*.md")}
    assert [name for name, content in pages.items() if (folder / name).read_bytes() != content] == []
    drawn = {f"{name}.png" for name, record in _stored_models().items() if record.breakdowns}
    assert drawn == {file.name for file in folder.glob("*.png")}


@pytest.mark.parametrize("page", [page for page in PAGES if "<!-- steps -->" in page.read_text()], ids=lambda page: page.name)
def test_tables_of_steps_are_those_of_the_stored_models(page: Path) -> None:
    """`fusebench report results/models` prints the table between the marks."""
    (table,) = re.findall(r"<!-- steps -->\n(.*?)<!-- end of steps -->", page.read_text(), re.DOTALL)
    rows = [line for line in table.splitlines() if line.startswith("|")]
    report = steps_markdown(_stored_models()).splitlines()
    assert rows == [line for line in report if line.startswith("|")][: 2 + len(MODELS)]


@functools.cache
def _stored_models() -> dict[str, ModelRecord]:
    results = REPOSITORY / "results"
    return explained_today({name: record for name, (_, record) in newest_models(results / "models").items()}, results)


def test_how_far_repeated_runs_agree_is_what_their_records_say() -> None:
    runs = [run for run in _history() if run.plan.precision is not None]
    assert len(runs) == 33
    earlier, seven, ten = runs[:-17], runs[-17:-10], runs[-10:]
    assert sorted(run.plan.precision or 0.0 for run in earlier) == [0.002] * 10 + [0.003] * 6
    assert [len({run.environment.device_uuid for run in some}) for some in (earlier, seven, ten, runs)] == [4, 1, 1, 6]
    assert {run.plan.precision for run in (*seven, *ten)} == {0.002}
    timings = [result.measurement for run in (*seven, *ten) for result in run.results if result.measurement is not None]
    assert min(timing.processes for timing in timings) == 8
    seconds = sorted(run.spending.total_s for run in ten if run.spending is not None)
    said = (
        f"ten runs with `--precision 0.002` agreed within {_spreads(ten)} on the published QK-norm cases, in {seconds[0]:.0f} to "
        f"{seconds[-1]:.0f} s each; seven on another H200 within {_spreads(seven)}; sixteen earlier ones (six of them with "
        f"`--precision 0.003`) on four more, with a first look at four processes, within {_spreads(earlier)}"
    )
    assert said in " ".join((REPOSITORY / "docs" / "reading_results.md").read_text().split())


def test_how_often_the_host_comes_late_is_what_the_stored_times_per_replicate_say() -> None:
    (nightly,) = [run for run in _history() if run.id == "f9d1dc2c"]
    singles, chains = ([one for one in nightly.replicates if (one.kernels > 1) is several] for several in (False, True))
    late, first = sum(one.late for one in chains), sum(one.late_opening for one in chains)
    said = (
        f"{sum(one.calls for one in chains)} calls of several launches, {late} idled over 20 us longer inside than the arm's calls of that "
        f"replicate usually do, {first} of them the first call of their replicate"
    )
    timers = " ".join((REPOSITORY / "docs" / "timers.md").read_text().split())
    assert said in timers
    later = sum(one.late_after_round_0 for one in chains)
    assert f"{later} after the first round; of its {sum(one.calls for one in singles)} single launches none" in timers
    assert sum(one.long for one in singles) == 0
    assert 9 < sum(one.opening for one in chains) / first < 11, "one in ten"


def test_nothing_moved_in_the_repeated_runs() -> None:
    """The one real history that there is: 33 runs of the published cases and eight nightlies, in which these kernels did not change."""
    kept = str(REPOSITORY / "results" / "history" / "nvidia_h200.parquet")
    arguments = ["--suite", "qknorm_rope", "--figure", "speedup", "--margin", "0.005", "--gate"]
    shown = CliRunner().invoke(app, ["history", kept, *arguments])
    assert shown.exit_code == 0, shown.output
    assert "41 runs on NVIDIA H200" in shown.output
    assert "5 series; 0 changes to slower, 0 to faster" in shown.output


@functools.cache
def _report(folder: str) -> list[str]:
    """The lines of the Markdown report of the stored run in `folder`."""
    from fusebench.report.run.markdown import markdown_report
    from fusebench.store.calibration_note import with_calibration
    from fusebench.store.run_folder import read_run

    return markdown_report(with_calibration(read_run(REPOSITORY / folder), REPOSITORY / "results")).splitlines()


def _history() -> list[KeptRun]:
    from fusebench.store.history_file import read_history_file

    return read_history_file(REPOSITORY / "results" / "history" / "nvidia_h200.parquet")


def _spreads(runs: Sequence[Run]) -> str:
    """How far the speedups of these runs are apart, in the case where they agree best and in the one where they agree least."""
    speedups: dict[str, list[float]] = {}
    for run in runs:
        for result in run.results:
            if result.measurement is not None and result.measurement.speedup is not None:
                assert result.measurement.processes >= 4
                speedups.setdefault(result.case_key, []).append(result.measurement.speedup.value)
    assert len(speedups) == 5
    spreads = sorted(max(values) / min(values) - 1 for values in speedups.values())
    return f"{100 * spreads[0]:.2f} to {100 * spreads[-1]:.2f} %"
