"""The catalogue: one row per kernel, case and run, which no crash makes unreadable and the runs restore."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from fusebench.errors import UsageError
from fusebench.schema import ExitCode, Run, Status
from fusebench.store.catalogue.files import MERGED, CatalogueError, Folder, add, merge, parts, rebuild
from fusebench.store.catalogue.query import Catalogue
from fusebench.store.catalogue.rows import COLUMNS, file_of, run_table
from fusebench.store.remote.files import Store
from helpers import s3_server as bench
from helpers.s3_server import BUCKET, Server, truncated

s3_server, s3 = bench.s3_server, bench.s3
Make = Callable[..., Run]


@pytest.fixture
def night(synthetic: ModuleType) -> Make:
    """`night(month, day)`: the run of a night, two cases."""
    return lambda month, day, **fields: synthetic.make_run(
        run_id=f"n{month:02d}{day:02d}", created=f"2026-{month:02d}-{day:02d}T03:00:00Z", cases=synthetic.CASES[:2], **fields
    )


@pytest.fixture
def filled(tmp_path: Path, night: Make) -> Folder:
    files = Folder(tmp_path / "results")
    for month in (5, 6):
        for day in (1, 2, 3):
            add(files, night(month, day))
    return files


def runs_in(files: Folder) -> list[str]:
    return [run for (run,) in Catalogue(files).rows("SELECT run FROM results GROUP BY run ORDER BY run")]


ALL = ["n0501", "n0502", "n0503", "n0601", "n0602", "n0603"]


def test_a_row_holds_the_figures_of_its_record(tmp_path: Path, night: Make) -> None:
    run = night(5, 1)
    assert file_of(run) == "catalogue/v1/device=nvidia_h200/month=2026-05/20260501T030000Z_n0501.parquet"
    add(Folder(tmp_path), run)
    rows = Catalogue(Folder(tmp_path)).rows('SELECT suite, "case", kernel, time_us, speedup, limit_us / time_us FROM results')
    found = {(suite, case, kernel): figures for suite, case, kernel, *figures in rows}
    assert len(found) == len(run.results)
    for result in run.results:
        timing = result.measurement
        assert timing is not None
        time_us, speedup, sol = found[result.suite, result.case, result.kernel]
        assert time_us == timing.time_us.value
        assert speedup == (timing.speedup.value if timing.speedup else None)
        assert sol == pytest.approx(timing.sol)
    others = night(5, 2, params={"heads": 3})
    assert set(run_table(run)["params"].to_pylist()).isdisjoint(run_table(others)["params"].to_pylist()), "another case of that name"


def test_a_run_takes_the_place_of_the_stopped_one_that_it_went_on_with(filled: Folder, night: Make) -> None:
    stopped = night(6, 4, complete=False)
    resumed = msgspec.structs.replace(night(6, 5), resumed_from=["n0604"])
    add(filled, stopped)
    assert runs_in(filled) == [*ALL, "n0604"]
    add(filled, resumed)
    assert runs_in(filled) == [*ALL, "n0605"]
    assert rebuild(filled, iter([night(5, 1), stopped, resumed])) == 2
    assert runs_in(filled) == ["n0501", "n0605"]
    assert rebuild(filled, iter([stopped, msgspec.structs.replace(resumed, cases=[], results=[])])) == 2, (
        "it holds what the other one lacks"
    )


def test_a_row_names_the_board_of_its_case(night: Make) -> None:
    run = night(5, 1, environment={"device_uuid": "GPU-a,GPU-b"})
    cases = [msgspec.structs.replace(one, board=board) for one, board in zip(run.cases, ("GPU-b", "GPU-a"), strict=True)]
    table = run_table(msgspec.structs.replace(run, cases=cases))
    found = set(zip(table["case"].to_pylist(), table["board"].to_pylist(), strict=True))
    assert found == {(one.case.name, one.board) for one in cases}
    assert set(run_table(night(5, 1, environment={"device_uuid": "GPU-a"}))["board"].to_pylist()) == {"GPU-a"}


def test_times_that_nothing_may_be_concluded_from_are_marked(synthetic: ModuleType) -> None:
    def usable(run: Run) -> set[bool]:
        return set(run_table(run)["usable"].to_pylist())

    where = (synthetic.CASES[0], synthetic.FUSED)
    assert usable(synthetic.make_run()) == {True}
    assert usable(synthetic.make_run(exit_code=ExitCode.DEVICE_UNFIT)) == {False}
    failed = run_table(synthetic.make_run(status={where: (Status.CRASHED, "fell over")}))
    assert failed.filter(failed["status"].to_numpy(zero_copy_only=False) == "crashed")["usable"].to_pylist() == [False]
    declined = run_table(synthetic.make_run(status={where: (Status.UNSUPPORTED, "too small")}))
    assert len(declined) == len(run_table(synthetic.make_run())) - 1
    assert set(declined.column_names) == set(COLUMNS)


def test_merged_files_hold_what_the_files_of_single_runs_held(filled: Folder, night: Make) -> None:
    before = Catalogue(filled).rows("SELECT * FROM results ORDER BY ALL")
    assert merge(filled) == 3
    assert [MERGED in path for path in filled.files_below("catalogue")].count(True) == 1, "more runs of the newest month will come"
    assert Catalogue(filled).rows("SELECT * FROM results ORDER BY ALL") == before
    add(filled, night(5, 1))
    add(filled, night(5, 9))
    assert runs_in(filled) == [*ALL[:3], "n0509", *ALL[3:]]
    assert len(Catalogue(filled).rows("SELECT * FROM results")) == len(before) * 7 // 6, "a run in two files counts once"
    merge(filled)
    assert runs_in(filled) == [*ALL[:3], "n0509", *ALL[3:]]
    assert merge(filled) == 0


def test_a_crash_while_files_are_merged_leaves_every_run_once(filled: Folder, monkeypatch: pytest.MonkeyPatch, night: Make) -> None:
    count = len(Catalogue(filled).rows("SELECT * FROM results"))
    for kept in (0, 1, 2):
        calls: list[str] = []

        def remove(path: str, calls: list[str] = calls, kept: int = kept) -> None:
            if len(calls) >= kept:
                raise KeyboardInterrupt
            calls.append(path)
            Folder.remove(filled, path)

        with monkeypatch.context() as crash:
            crash.setattr(filled, "remove", remove)
            with pytest.raises(KeyboardInterrupt):
                merge(filled, keep_newest=False)
        assert runs_in(filled) == ALL
        assert len(Catalogue(filled).rows("SELECT * FROM results")) == count
    add(filled, night(5, 4))
    merge(filled, keep_newest=False)
    # Two that merged at once: one file of three runs beside one of four.
    assert runs_in(filled) == sorted([*ALL, "n0504"])


def test_two_merged_files_with_a_run_in_common_count_it_once(filled: Folder, night: Make, tmp_path: Path) -> None:
    merge(filled)
    other = Folder(tmp_path / "other")
    for day in (3, 4):
        add(other, night(5, day))
    merge(other, keep_newest=False)
    for path in other.files_below("catalogue"):
        filled.write(path, other.read(path) or b"")
    assert runs_in(filled) == sorted([*ALL, "n0504"])
    each = Catalogue(filled).rows("SELECT count(*) FROM results GROUP BY run")
    assert len(set(each)) == 1


def test_a_file_that_is_cut_off_is_named_and_rebuilding_mends_it(filled: Folder, night: Make) -> None:
    path = next(iter(filled.files_below("catalogue")))
    content = filled.read(path) or b""
    for cut in (0, 3, len(content) // 2, len(content) - 1):
        filled.write(path, content[:cut])
        with pytest.raises(CatalogueError, match=r"n0501.*cut off.*fusebench catalogue rebuild"):
            Catalogue(filled)
    filled.write("catalogue/v1/device=gone/month=2020-01/old.parquet", b"")
    assert rebuild(filled, iter([night(month, day) for month in (5, 6) for day in (1, 2, 3)])) == 6
    assert runs_in(filled) == ALL
    assert filled.read(path) == content


def test_a_newer_version_of_the_catalogue_is_refused_and_not_read_in_part(filled: Folder) -> None:
    filled.write("catalogue/v2/device=nvidia_h200/month=2026-07/x.parquet", b"")
    with pytest.raises(CatalogueError, match=r"catalogue/v2: of a newer version .* upgrade fusebench"):
        parts(filled)


def test_an_empty_catalogue_and_a_wrong_query_are_told(tmp_path: Path, filled: Folder) -> None:
    with pytest.raises(CatalogueError, match="is empty"):
        Catalogue(Folder(tmp_path / "none")).rows("SELECT 1 FROM results")
    with pytest.raises(UsageError, match="refused"):
        Catalogue(filled).rows("SELECT nothing FROM results")


def test_files_of_a_store_are_downloaded_once(s3: Server, tmp_path: Path, night: Make) -> None:
    store = Store(f"s3://{BUCKET}/nightly")
    for day in (1, 2):
        add(store, night(5, day))
    s3.spoil(truncated, path="n0503")
    add(store, night(5, 3))
    read = "SELECT count(DISTINCT run) FROM results"
    assert Catalogue(store, cache=tmp_path).rows(read) == [(3,)]
    s3.requests.clear()
    assert Catalogue(store, cache=tmp_path, devices=["nvidia_h200"]).rows(read) == [(3,)]
    assert not [path for method, path in s3.requests if method == "GET" and path.endswith(".parquet")]
    assert Catalogue(store, cache=tmp_path, devices=["nvidia_b200"]).parts == []
    merge(store, keep_newest=False)
    assert Catalogue(store, cache=tmp_path).rows(read) == [(3,)]
