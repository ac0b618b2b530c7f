"""HTML reports in a real browser: they sort, filter and fit without a network, and are small."""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import shutil
import signal
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pandas
import pytest

from fusebench.report.html.page import html_report
from fusebench.schema import Run
from fusebench.store.history_file import read_history_file

HISTORY = Path(__file__).parents[2] / "results" / "history" / "nvidia_h200.op_mix.parquet"
CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine; `make test` installs it where it can")

PROBE = """
<script>
const rows = (table) => [...table.tBodies[0].rows].filter((row) => !row.hidden);
const table = document.querySelector("table.runs"), heads = [...table.tHead.rows[0].cells];
const found = { width: innerWidth, scroll: document.documentElement.scrollWidth, order: [] };
found.network = performance.getEntriesByType("resource").length;
const at = heads.findIndex((head) => head.textContent.trim().startsWith("us"));
for (let turn = 0; turn < 2; turn++) {
  heads[at].querySelector("button").click();
  found.order.push(rows(table).slice(0, 40).map((row) => parseFloat(row.cells[at].textContent)));
}
found.sorted = heads[at].getAttribute("aria-sort");
const box = table.closest(".wrap").getBoundingClientRect(), last = rows(table)[0].cells[heads.length - 1].getBoundingClientRect();
heads[at].querySelector("button").focus();
found.focus = getComputedStyle(document.activeElement).outlineStyle;
found.verdict = [last.left >= box.left - 1, last.right <= box.right + 1];
found.all = document.querySelectorAll("table.runs tbody tr").length;
const words = document.getElementById("filter");
words.value = "fused_triton@2"; words.dispatchEvent(new Event("input"));
const left = [...document.querySelectorAll("table.runs tbody tr")].filter((row) => !row.hidden);
found.filtered = left.map((row) => row.cells[1].textContent.trim());
found.status = document.getElementById("status").textContent;
found.unnamed = [...document.querySelectorAll("button, input, select, a, svg[role=img]")].filter((one) =>
  !(one.textContent.trim() || one.getAttribute("aria-label") || one.closest("label")?.textContent.trim())).length;
found.levels = [...document.querySelectorAll("h1, h2, h3, h4")].map((one) => Number(one.tagName[1]));
found.named = [...document.querySelectorAll("table")].every((one) =>
  one.caption || one.closest("[role=region]")?.matches("[aria-label], [aria-labelledby]"));
found.hidden_focus = document.querySelector("a.skip").getAttribute("href");
document.body.dataset.found = JSON.stringify(found);
</script></body>"""


def probed(page: str, folder: Path, width: int, *, probe: str = PROBE, wait: bool = True) -> dict[str, Any]:
    """What `probe` finds out about the page in a browser window of that width; without `wait`, on the wall's clock."""
    file = folder / "page.html"
    file.write_text(page.replace("</body>", probe))
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder}/profile"]
    command += [f"--window-size={width},900", *(["--virtual-time-budget=2000"] if wait else []), "--dump-dom", file.as_uri()]
    printed = browsed(command, folder)
    answer = re.search(r'data-found="([^"]*)"', printed)
    assert answer is not None, printed[-2000:] + (folder / "stderr.txt").read_text()[-2000:]
    found: dict[str, Any] = json.loads(html.unescape(answer[1]))
    return found


def browsed(command: list[str], folder: Path) -> str:
    """What the browser prints.  It writes to files, since its helper processes would hold a pipe open after it was killed."""
    with (folder / "stdout.txt").open("w") as printed, (folder / "stderr.txt").open("w") as errors:
        browser = subprocess.Popen(command, stdout=printed, stderr=errors, start_new_session=True)
        try:
            assert browser.wait(120) == 0, (folder / "stderr.txt").read_text()[-2000:]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(browser.pid, signal.SIGKILL)
    return (folder / "stdout.txt").read_text()


@pytest.fixture(scope="module")
def nightly() -> str:
    import pandas as pd

    (run,) = [one for one in read_history_file(HISTORY) if one.id == "2aac7247"]
    samples = pd.DataFrame([{"case": one.case, "arm": one.arm, "span_ns": one.span_ns} for one in run.replicates])
    return html_report(run, samples=samples)


@needs_browser
@pytest.mark.parametrize("width", [1280, 500])
def test_a_nightly_sorts_filters_and_fits(nightly: str, tmp_path: Path, width: int) -> None:
    found = probed(nightly, tmp_path, width)
    assert found["scroll"] <= found["width"], "the page itself never scrolls sideways"
    assert found["verdict"] == [True, True], "the verdict is in view without scrolling the table"
    ascending, descending = found["order"]
    assert ascending == sorted(ascending)
    assert descending == sorted(descending, reverse=True)
    assert found["sorted"] == "descending"
    assert set(found["filtered"]) == {"fused_triton@2"}
    assert found["status"] == f"{len(found['filtered'])} of {found['all']} rows shown"
    assert all(after - before <= 1 for before, after in pairwise(found["levels"]))
    assert found["named"], "every table has a caption or stands in a region with a name"
    assert found["unnamed"] == 0, "a screen reader has a name for every control and chart"
    assert found["hidden_focus"] == "#tables"
    assert found["network"] == 0


@pytest.fixture(scope="module")
def large(synthetic: ModuleType) -> tuple[str, float]:
    """The page of a run of 500 cases and 3000 rows with the distributions of its samples, and the processor seconds that it took."""
    run: Run = synthetic.make_run(cases=[f"case_{index}" for index in range(500)])
    # Two samples of every kernel say as much about the page as two hundred.
    samples = pandas.DataFrame([msgspec.structs.asdict(one) for one in synthetic.make_samples(run, replicates=1, rounds=2)])
    start = time.process_time()
    return html_report(run, samples=samples), time.process_time() - start


def test_a_run_of_500_cases_is_built_quickly_and_below_two_megabytes(large: tuple[str, float]) -> None:
    page, seconds = large
    assert len(page.encode()) < 2_000_000
    assert seconds < 5.0
    assert page.count('<th scope="row">case_') == 3000
    assert page.count('<tr class="later">') == 2800
    assert page.count('<i class="d"') == 3000


INTERACTIVE = """
<script>
addEventListener("load", () => {
  const table = document.querySelector("table.runs"), rows = () => [...table.tBodies[0].rows].filter((row) => row.offsetHeight > 0).length;
  const button = table.tHead.rows[0].cells[3].querySelector("button"), first = table.tBodies[0].rows[0];
  button.click();
  const answered = table.tBodies[0].rows[0].getBoundingClientRect().height > 0 && table.tBodies[0].rows[0] !== first;
  const found = { answered, ms: performance.now(), width: innerWidth, scroll: document.documentElement.scrollWidth, rows: [rows()] };
  const words = document.getElementById("filter"), filter = (text) => { words.value = text; words.dispatchEvent(new Event("input")); };
  filter("fused_triton@2"); found.rows.push(rows());
  filter(""); found.rows.push(rows());
  button.focus(); found.outline = getComputedStyle(button).outlineStyle;
  const more = document.querySelector("button.more"); more.focus(); more.click();
  found.rows.push(rows());
  found.focus = document.activeElement === table.closest(".wrap");
  document.body.dataset.found = JSON.stringify(found);
});
</script></body>"""


BARE = """
<script>
const start = performance.now(), table = document.createElement("table");
document.body.append(table);
table.innerHTML = ("<tr>" + "<td>12.34".repeat(12)).repeat(3000);
document.body.dataset.found = JSON.stringify({ ms: performance.now() - start });
</script></body>"""


@needs_browser
def test_a_run_of_500_cases_answers_a_first_click_within_a_second(large: tuple[str, float], tmp_path: Path) -> None:
    """From the start of navigation to the sorted table, at the best of eight.

    A slow or busy machine is allowed ten times what its browser takes to build a bare table of as many cells (70 ms on a quiet one);
    that the page is slower by a rule of style or by thousands of drawings, which has happened, still fails.
    """
    found = _fastest(large[0], tmp_path, INTERACTIVE, 1000)
    assert found["answered"]
    assert found["ms"] < 1000 or found["ms"] < 10 * _fastest("<!doctype html><body></body>", tmp_path, BARE, 0)["ms"]
    assert found["scroll"] <= found["width"]
    assert found["rows"] == [200, 500, 200, 3000], "the first rows; all that a filter finds; the first rows; all"
    assert found["focus"], "the keyboard stays at the table when its button is gone"


def _fastest(page: str, folder: Path, probe: str, enough_ms: float) -> dict[str, Any]:
    """The fastest answer of eight, or the first that took no more than that."""
    best: dict[str, Any] = {}
    for _ in range(8):
        found = probed(page, folder, 1280, probe=probe, wait=False)
        best = found if not best or found["ms"] < best["ms"] else best
        if best["ms"] <= enough_ms:
            break
    return best


def test_the_page_names_what_it_shows_for_screen_readers(nightly: str) -> None:
    assert nightly.startswith('<!doctype html>\n<html lang="en">')
    assert nightly.count('aria-sort="none"') == 12 * nightly.count('<table class="runs"')
    assert '<a class="skip" href="#tables">' in nightly
    assert re.search(r'<svg class="chart"[^>]* role="img" aria-label="Share of the speed of light', nightly)
    assert "prefers-color-scheme: dark" in nightly
    assert "not runnable here (540 kernel-case pairs)" in nightly
    assert "peer_sglang@1</td>" not in nightly
