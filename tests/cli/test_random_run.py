"""From random cases to the page of how near they come to the limit: a kernel that is slow on odd widths stands lowest there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from click.testing import Result as Outcome

from fusebench.report.run.limits import limits_markdown
from fusebench.runner.workers.protocol import TimeTask
from fusebench.store.run_folder import read_run
from helpers import run_bench
from helpers.run_bench import FakeWorkers, measured, only_run

project, workers = run_bench.project, run_bench.workers
SPACE = "    space = {'size': (range(2048, 16385, 256), range(2048, 16385, 8))}\n"
DRAW = ["suite", "random", "--count", "14", "--seed", "3", "--at-least", "0.01", "--at-most", "0.2", "--out", "random.toml"]
RUN = ["run", "--suite", "random.toml", "--device", "cpu", "--cache", "warm", "--replicates", "2", "--rounds", "2", "--no-evidence"]


def slow_on_odd_widths(task: TimeTask) -> float:
    """Microseconds beside a limit of 4: 97 % of it on multiples of 256, 64 to 87 % elsewhere."""
    size = task.case.params["size"]
    return 4.1 if size % 256 == 0 else 4.6 + size / 10_000


def test_a_kernel_that_is_slow_on_odd_widths_is_listed_lowest(
    project: Path, workers: FakeWorkers, fusebench: Callable[..., Outcome]
) -> None:
    op = project / "kernels" / "scale" / "op.py"
    op.write_text(op.read_text().replace('    name = "scale"\n', f'    name = "scale"\n{SPACE}', 1))
    workers.timed = lambda task: measured(task, slow_on_odd_widths(task))
    assert fusebench(*DRAW).exit_code == 0
    outcome = fusebench(*RUN, "--kernel", "plain")
    assert outcome.exit_code == 0, outcome.output
    record = read_run(only_run(project))
    sizes = {one.case.name: one.case.params["size"] for one in record.cases}
    odd = sorted((name for name, size in sizes.items() if size % 256), key=lambda name: -sizes[name])
    assert 4 <= len(odd) <= 10

    page = fusebench("report", "--format", "limits").stdout
    lowest = page[page.index("## Lowest cases") : page.index("<details>")]
    listed = re.findall(r"^\| (scale_\d+) \| \d+ \| `plain@1` \|", lowest, re.MULTILINE)
    assert listed[: len(odd)] == odd
    assert len(listed) == 10
    assert f"**Of 14 cases, {100 * ((14 - len(odd)) / 14):.1f} %" + " reach 95 % of the limit" in page
    assert "fusebench suite random --count 14 --at-least 0.01 --at-most 0.2 --seed 3\n" in page

    written = fusebench("report", "--format", "limits", "--out", "docs/random.md")
    assert written.exit_code == 0, written.output
    assert (project / "docs" / "random.md").read_text() == limits_markdown(record, picture="random.png")
    assert (project / "docs" / "random.png").read_bytes().startswith(b"\x89PNG")
    assert "name the page, such as docs/random.md" in fusebench("report", "--format", "limits", "--out", "docs/random.png").stderr
