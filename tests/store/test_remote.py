"""Runs on a real S3 server: whole or absent, whatever the connection does, and every failure by its own name."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fusebench.errors import AlteredRecordError, RunRecordError, UnknownNameError, UsageError
from fusebench.store.remote import files
from fusebench.store.remote.faults import (
    StoreCredentialsError,
    StoreDamageError,
    StoreError,
    StoreForbiddenError,
    StoreMissingError,
    StorePackageError,
    StoreUnreachableError,
)
from fusebench.store.remote.files import ATTEMPTS, Store
from fusebench.store.remote.kept import baseline_devices, fetch_baseline, publish_baseline
from fusebench.store.remote.runs import download, is_whole, named_run, publish_run
from fusebench.store.run_folder import RUN_FILE, read_run, read_samples, seal_of, write_run
from helpers import s3_server as bench
from helpers.s3_server import BUCKET, Server, bad_key, dropped, error_500, read_only, truncated

s3_server, s3 = bench.s3_server, bench.s3
URL = f"s3://{BUCKET}/nightly"


@pytest.fixture
def run(tmp_path: Path, synthetic: ModuleType) -> Path:
    made = synthetic.make_run()
    return write_run(tmp_path / "runs", made, synthetic.make_samples(made))


def test_a_published_run_is_downloaded_as_it_was_and_fits_its_seal(s3: Server, run: Path, tmp_path: Path) -> None:
    store = Store(URL)
    target, _ = publish_run(store, run)
    assert [path for method, path in s3.requests if method == "PUT"][-1].endswith(f"{target}/{RUN_FILE}"), "the record comes last"
    download(store, target, tmp_path / "copy")
    assert read_run(tmp_path / "copy") == read_run(run)
    assert seal_of(tmp_path / "copy").sealed
    assert not seal_of(tmp_path / "copy").altered
    assert len(read_samples(tmp_path / "copy")) == len(read_samples(run))


@pytest.mark.parametrize("fault", [error_500, dropped, truncated])
@pytest.mark.parametrize("file", ["results.parquet", RUN_FILE])
def test_one_fault_is_outlasted(s3: Server, run: Path, tmp_path: Path, fault: Callable[..., Iterable[bytes]], file: str) -> None:
    s3.spoil(fault, path=file)
    store = Store(URL)
    target, _ = publish_run(store, run)
    download(store, target, tmp_path / "copy")
    assert not seal_of(tmp_path / "copy").altered
    assert read_run(tmp_path / "copy") == read_run(run)


@pytest.mark.parametrize(
    ("fault", "error", "attempts"),
    [
        (error_500, StoreError, ATTEMPTS),
        (dropped, StoreUnreachableError, ATTEMPTS),
        (truncated, StoreDamageError, ATTEMPTS),
        (read_only, StoreForbiddenError, 1),
        (bad_key, StoreCredentialsError, 1),
    ],
)
def test_a_lasting_fault_has_its_name_and_leaves_no_run(
    s3: Server, run: Path, fault: Callable[..., Iterable[bytes]], error: type[StoreError], attempts: int
) -> None:
    store = Store(URL)
    s3.spoil(fault, path="results.parquet", times=3 * ATTEMPTS)
    with pytest.raises(StoreError) as raised:
        publish_run(store, run)
    assert type(raised.value) is error
    assert URL in str(raised.value)
    uploads = sum(method == "PUT" and "results.parquet" in path for method, path in s3.requests)
    assert attempts <= uploads <= 2 * attempts, "the HTTP client tries once more on a connection that was dropped"
    s3.spoil()
    assert not is_whole(store, run.name)
    with pytest.raises(RunRecordError, match="holds no runs yet"):
        named_run(store, "latest")
    publish_run(store, run)
    assert named_run(store, "latest") == run.name, "the same folder completes the publication"


def test_pauses_between_attempts_grow(s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FIRST_PAUSE_S", 0.5)
    pauses: list[float] = []
    s3.spoil(error_500, times=ATTEMPTS)
    with pytest.raises(StoreError):
        Store(URL, pause=pauses.append).write("one", b"1")
    assert len(pauses) == ATTEMPTS - 1
    assert all(later > 1.1 * earlier for earlier, later in pairwise(pauses))
    assert 8 < sum(pauses) < 25


@pytest.mark.usefixtures("s3")
def test_no_credentials_no_server_and_no_bucket_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreMissingError, match="no such bucket"):
        Store("s3://absent/x").require_writable()
    with monkeypatch.context() as without:
        without.setenv(bench.ENDPOINT, "http://127.0.0.1:9")
        with pytest.raises(StoreUnreachableError, match="cannot be reached"):
            Store(URL).require_writable()
    monkeypatch.delenv(bench.KEY)
    monkeypatch.delenv(bench.SECRET)
    with pytest.raises(StoreCredentialsError, match="none were found"):
        Store(URL).require_writable()


@pytest.mark.usefixtures("s3")
def test_a_server_that_never_answers_is_named_while_it_is_waited_for_and_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.config import conf

    told: list[str] = []
    monkeypatch.setitem(conf, "s3", {"config_kwargs": {"read_timeout": 1}})
    monkeypatch.setattr(files, "SILENT_S", 0.2)
    monkeypatch.setattr(files, "FIRST_CONTACT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv(bench.ENDPOINT, f"http://127.0.0.1:{silent.getsockname()[1]}")
        store = Store(URL, tell=told.append)
        with pytest.raises(StoreUnreachableError, match="cannot be reached"):
            store.names("runs")
    assert told == [f"no answer for 0.2 s from {URL}/runs"]


@pytest.mark.usefixtures("s3")
def test_further_attempts_are_told_once_with_their_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(bench.ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setattr(files, "SILENT_S", 60.0)
    told, pauses = list[str](), list[float]()
    with pytest.raises(StoreUnreachableError):
        Store(URL, tell=told.append, pause=pauses.append).names("runs")
    assert len(pauses) == ATTEMPTS - 1
    assert len(told) == 1
    assert "cannot be reached" in told[0]
    assert "trying again for about" in told[0]


def test_a_store_that_was_reached_is_tried_for_longer(s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FIRST_CONTACT_S", 0.0)
    store = Store(URL)
    store.write("one", b"1")
    s3.spoil(dropped, method="GET", times=3)
    assert store.read("one") == b"1"
    s3.spoil(dropped, method="GET", times=3)
    with pytest.raises(StoreUnreachableError):
        Store(URL).read("one")


def test_another_kind_of_store_needs_its_package() -> None:
    with pytest.raises(StorePackageError, match=r"fusebench\[store\]"):
        Store("nosuch://bucket/x")
    with pytest.raises(UsageError, match="names no bucket"):
        Store("s3://")


def test_a_password_is_not_told() -> None:
    assert Store("memory://someone:hunter2@host/x").url == "memory://someone:…@host/x"


@pytest.mark.usefixtures("s3")
def test_a_run_is_never_replaced_and_publishing_again_changes_nothing(run: Path, tmp_path: Path, synthetic: ModuleType) -> None:
    store = Store(URL)
    publish_run(store, run)
    before = store.files_below("")
    publish_run(store, run)
    assert store.files_below("") == before
    other = synthetic.make_run(warnings=["another"])
    with pytest.raises(RunRecordError, match="never overwritten"):
        publish_run(store, write_run(tmp_path / "others", other, synthetic.make_samples(other)))
    assert store.read(f"runs/{run.name}/{RUN_FILE}") == (run / RUN_FILE).read_bytes()


@pytest.mark.usefixtures("s3")
def test_two_that_publish_at_once_cannot_replace_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(URL)
    store.write("one", b"first", new=True)
    monkeypatch.setattr(store, "_read_back", lambda _: None)  # the other one looked before the first had written
    with pytest.raises(FileExistsError):
        store.write("one", b"second", new=True)
    assert store.read("one") == b"first"


@pytest.mark.usefixtures("s3")
def test_an_altered_run_is_not_published_and_one_altered_there_is_noticed(run: Path, tmp_path: Path) -> None:
    store = Store(URL)
    target, _ = publish_run(store, run)
    store.write(f"{target}/results.parquet", (run / "cases.parquet").read_bytes())
    download(store, target, tmp_path / "copy")
    assert "results.parquet" in seal_of(tmp_path / "copy").altered
    (run / "results.parquet").write_bytes(b"")
    with pytest.raises((AlteredRecordError, RunRecordError)):
        publish_run(store, run)


@pytest.mark.parametrize("where", ["s3", "file"])
def test_the_last_promotion_counts_and_none_is_lost(
    s3: Server, where: str, tmp_path: Path, synthetic: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(URL if where == "s3" else f"file://{tmp_path}/store")
    slug = "nvidia_h200"
    assert fetch_baseline(store, slug, tmp_path / "none") is None
    for name in ("r1", "r2"):
        made = synthetic.make_run(run_id=name)
        folder = write_run(tmp_path / name, made, synthetic.make_samples(made))
        (tmp_path / name / "baselines").mkdir()
        folder.rename(tmp_path / name / "baselines" / slug)
        publish_baseline(store, slug, tmp_path / name)
    found = fetch_baseline(store, slug, tmp_path / "fetched")
    assert found is not None
    assert read_run(found).id == "r2"
    assert baseline_devices(store) == [slug]
    assert len(store.names(f"baselines/{slug}")) == 2
    newest = store.names(f"baselines/{slug}")[-1]
    store.remove(f"baselines/{slug}/{newest}/{RUN_FILE}")  # its promotion was ended before the record was there
    found = fetch_baseline(store, slug, tmp_path / "again")
    assert found is not None
    assert read_run(found).id == "r1"


def test_names_are_resolved_as_those_of_local_runs(tmp_path: Path, synthetic: ModuleType) -> None:
    store = Store(f"file://{tmp_path}/store")
    for name, created in (("alpha", "2026-07-01T00:00:00Z"), ("alps", "2026-07-02T00:00:00Z")):
        made: Any = synthetic.make_run(run_id=name, created=created)
        publish_run(store, write_run(tmp_path / "runs", made, synthetic.make_samples(made)))
    assert named_run(store, "latest").endswith("_alps")
    assert named_run(store, "alpha").endswith("_alpha")
    with pytest.raises(RunRecordError, match="ambiguous"):
        named_run(store, "al")
    with pytest.raises(UnknownNameError):
        named_run(store, "beta")
    assert not list((tmp_path / "store").rglob("*.partial"))
