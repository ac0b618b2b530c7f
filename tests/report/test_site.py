"""The static site of a history: an index, a page per kernel, the newest run and data for other dashboards; all links lead somewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from fusebench.report.history import History
from fusebench.report.html.page import html_report
from fusebench.report.html.site import DATA, INDEX, NEWEST, site_files
from fusebench.schema import Run
from fusebench.stats.fdr import DEFAULT_RATE
from fusebench.verdict.history.series import Figure, comparable_runs, series_of, snapshot
from fusebench.verdict.history.shifts import DEFAULT_MARGIN, find_shifts

NIGHTS = 60


def history_of(runs: list[Run]) -> History:
    kept, left_out = comparable_runs([snapshot(run) for run in runs], Figure.SOL)
    tracks = find_shifts(series_of(kept, Figure.SOL))
    return History(runs=kept, left_out=left_out, unreadable=[], tracks=tracks, figure=Figure.SOL, margin=DEFAULT_MARGIN, rate=DEFAULT_RATE)


@pytest.fixture(scope="module")
def nights(synthetic: ModuleType) -> list[Run]:
    """Two months, with a kernel that becomes 6 % slower at the fortieth night."""
    fields = {"cases": ("flux_1024", "zimage_1024"), "kernels": [synthetic.BASELINE, synthetic.FUSED]}
    runs: list[Run] = synthetic.make_history(NIGHTS, {("flux_1024", synthetic.FUSED): [(40, 1.06)]}, **fields)
    return runs


@pytest.fixture(scope="module")
def site(nights: list[Run]) -> dict[str, str]:
    history = history_of(nights)
    files = site_files(history, html_report(nights[-1], history=history), nights[-1])
    return {name: content.decode() for name, content in files.items()}


def test_every_link_of_every_page_leads_to_a_file_of_the_site(site: dict[str, str]) -> None:
    pages = {name: text for name, text in site.items() if name.endswith(".html")}
    assert len(pages) == 2 + 2
    for name, text in pages.items():
        for target in re.findall(r'(?:href|src)="(?!data:,)([^"]*)"', text):
            file, _, anchor = target.partition("#")
            assert not file or file in site, f"{name}: {target}"
            assert not anchor or f'id="{anchor}"' in site[file or name], f"{name}: {target}"
        assert "http" not in text


def test_the_index_names_the_change_and_the_kernels_page_draws_it(site: dict[str, str], synthetic: ModuleType) -> None:
    assert "the newest level is slower than the one before" in site[INDEX]
    changes = site[INDEX][site[INDEX].index('id="changes"') : site[INDEX].index('id="kernels"')]
    assert changes.count('<tr><th scope="row"') == 1
    assert re.search(r">qknorm_rope:flux_1024</th>.*qknorm_rope/fused_triton@2</a></td><td>\+[56]\.\d %</td>", changes)
    page = site["kernel-qknorm_rope-fused_triton@2.html"]
    assert page.count('<svg class="chart"') == 2
    assert page.count('<path class="slower"') == 1
    assert page.index("1 change point") < page.index("no change point"), "what moved comes first"
    assert '<section id="history"' in site[NEWEST]


def test_the_data_holds_every_point_and_change(site: dict[str, str], synthetic: ModuleType) -> None:
    data = json.loads(site[DATA])
    assert (data["version"], data["figure"], len(data["runs"]), len(data["series"])) == (1, "sol", NIGHTS, 4)
    moved = [one for one in data["series"] if one["change_points"]]
    assert [(one["kernel"], one["case"]) for one in moved] == [(synthetic.FUSED, "flux_1024")]
    assert moved[0]["change_points"][0]["run"] == 40
    assert [point[0] for point in moved[0]["points"]] == list(range(NIGHTS))
    assert data["runs"][0]["commit"]


def test_hostile_kernel_names_get_distinct_files_inside_the_folder(nights: list[Run], synthetic: ModuleType) -> None:
    import msgspec

    names = iter(("../../etc/<b>x", "..-..-etc--b-x", 'a"onload=1'))
    history = history_of(nights)
    tracks = [
        msgspec.structs.replace(track, series=msgspec.structs.replace(track.series, kernel=next(names, track.series.kernel)))
        for track in history.tracks
    ]
    files = site_files(msgspec.structs.replace(history, tracks=tracks), "", nights[-1])
    assert len(files) == 3 + 4
    assert all(re.fullmatch(r"[A-Za-z0-9_@.-]+", name) and not name.startswith(".") for name in files)
    assert not any(b"<b>" in content for name, content in files.items() if name.endswith(".html"))
    assert b'a"onload' not in files[INDEX]


def test_the_command_writes_the_site(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from fusebench.cli.main import app

    results = Path(__file__).parents[2] / "results"
    newest, history = str(results / "baselines" / "nvidia_h200"), str(results / "history" / "nvidia_h200.parquet")
    done = CliRunner().invoke(app, ["report", newest, "--site", str(tmp_path / "site"), "--history", history])
    assert done.exit_code == 0, done.output
    written = {file.name for file in (tmp_path / "site").iterdir()}
    assert {INDEX, NEWEST, DATA} < written
    assert f"wrote {len(written)} files into {tmp_path / 'site'}" in done.stderr
    refused = CliRunner().invoke(app, ["report", newest, "--site", str(tmp_path), "--format", "html"])
    assert (refused.exit_code, "--site" in refused.stderr) == (2, True)
    refused = CliRunner().invoke(app, ["report", newest, "--history", history])
    assert (refused.exit_code, "--history" in refused.stderr) == (2, True)
