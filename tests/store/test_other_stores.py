"""Stores other than S3: a folder on a host with SSH, GCS on an emulator, and what Azure and GCS say when they refuse."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fusebench.store.remote import files
from fusebench.store.remote.faults import (
    StoreCredentialsError,
    StoreError,
    StoreForbiddenError,
    StoreMissingError,
    StoreUnreachableError,
    store_fault,
)
from fusebench.store.remote.files import Store
from fusebench.store.remote.runs import download, publish_run
from fusebench.store.run_folder import read_run, seal_of, write_run


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FIRST_PAUSE_S", 0.0)


@pytest.fixture
def run(tmp_path: Path, synthetic: ModuleType) -> Path:
    made = synthetic.make_run()
    return write_run(tmp_path / "runs", made, synthetic.make_samples(made))


class SshHost:
    """An SSH server on this machine, which lets one key in and serves its files."""

    def __init__(self, folder: Path) -> None:
        asyncssh = pytest.importorskip("asyncssh", reason="asyncssh is not installed: the extra `store` brings it")
        pytest.importorskip("sshfs", reason="sshfs is not installed: the extra `store` brings it")
        self.folder, self.locked = folder, False
        for name in ("key", "other"):
            key = asyncssh.generate_private_key("ssh-ed25519")
            key.write_private_key(str(folder / name))
            key.write_public_key(str(folder / f"{name}.pub"))
        host = self

        class Files(asyncssh.SFTPServer):  # type: ignore[misc, name-defined]
            def open(self, path: bytes, pflags: int, attrs: Any) -> object:
                if host.locked and pflags & asyncssh.FXF_WRITE:
                    raise asyncssh.SFTPPermissionDenied("planted")
                return super().open(path, pflags, attrs)

        async def listen() -> int:
            server = await asyncssh.listen(
                "127.0.0.1",
                0,
                server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
                authorized_client_keys=str(folder / "key.pub"),
                sftp_factory=Files,
            )
            return int(server.get_port())

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(listen(), self._loop).result(20)
        self.url = f"ssh://me@127.0.0.1:{self.port}{folder}/store"

    def stop(self) -> None:
        async def end() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshHost]:
    host = SshHost(tmp_path)
    log_in(monkeypatch, host, "key")
    yield host
    host.stop()


def log_in(monkeypatch: pytest.MonkeyPatch, host: SshHost, key: str, **options: Any) -> None:
    from fsspec.config import conf

    monkeypatch.setitem(conf, "ssh", {"client_keys": [str(host.folder / key)], "config": [], "known_hosts": None} | options)


def exercise(store: Store, run: Path, tmp_path: Path) -> None:
    """Publish, list, read back, replace and remove."""
    store.require_writable()
    assert store.read("runs/absent/run.json") is None
    assert store.names("runs") == []
    assert store.files_below("runs") == {}
    target, _ = publish_run(store, run)
    assert publish_run(store, run)[0] == target
    download(store, target, tmp_path / "copy")
    assert read_run(tmp_path / "copy") == read_run(run)
    assert not seal_of(tmp_path / "copy").altered
    assert store.names("runs") == [target.partition("/")[2]]
    assert store.files_below("runs")[f"{target}/run.json"] == (run / "run.json").stat().st_size
    with pytest.raises(FileExistsError):
        store.write(f"{target}/run.json", b"{}", new=True)
    for content in (b"first", b"", b"second"):
        store.write("calibration/one.json", content)
        assert store.read("calibration/one.json") == content
    store.remove("calibration/one.json")
    store.remove("calibration/one.json")
    assert store.read("calibration/one.json") is None


def test_a_host_with_ssh_keeps_runs(ssh: SshHost, run: Path, tmp_path: Path) -> None:
    exercise(Store(ssh.url), run, tmp_path)
    assert not [file for file in (tmp_path / "store").rglob("*") if file.name.endswith(".partial")]


def test_what_a_host_refuses_is_told_apart(ssh: SshHost, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(ssh.url)
    ssh.locked = True
    with pytest.raises(StoreForbiddenError, match="read-only"):
        store.require_writable()
    log_in(monkeypatch, ssh, "other")
    with pytest.raises(StoreCredentialsError, match="refused those it got"):
        Store(ssh.url).require_writable()
    (ssh.folder / "known").touch()
    log_in(monkeypatch, ssh, "key", known_hosts=str(ssh.folder / "known"))
    with pytest.raises(StoreCredentialsError, match="known_hosts"):
        Store(ssh.url).require_writable()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"ssh://me@127.0.0.1:{free.getsockname()[1]}/tmp/x"
    with pytest.raises(StoreUnreachableError):
        Store(nobody).require_writable()


def test_a_bucket_of_gcs_keeps_runs(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gcsfs", reason="gcsfs is not installed: the extra `store` brings it")
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="gcp-storage-emulator is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="results")
    server.start()
    try:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        exercise(Store("gs://results/nightly"), run, tmp_path)
        with pytest.raises(StoreMissingError):
            Store("gs://absent/x").require_writable()
    finally:
        server.stop()


def raised(name: str, base: type[Exception] = Exception, text: str = "planted", **fields: Any) -> Exception:
    """An error as a package raises it, by its class's name."""
    error: Exception = type(name, (base,), {})(text)
    for field, value in fields.items():
        setattr(error, field, value)
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        # As adlfs 2026.8 raised them against Azurite 3.37, and as Azure documents its codes.
        (raised("ResourceNotFoundError", error_code=SimpleNamespace(value="ContainerNotFound")), StoreMissingError),
        (raised("HttpResponseError", error_code="AuthorizationFailure"), StoreForbiddenError),
        (raised("HttpResponseError", error_code="AuthorizationPermissionMismatch"), StoreForbiddenError),
        (raised("ClientAuthenticationError", error_code="AuthenticationFailed"), StoreCredentialsError),
        (raised("ServiceRequestError"), StoreUnreachableError),
        (ValueError("Must provide either a connection_string or account_name with credentials!!"), StoreCredentialsError),
        # As gcsfs raises them.
        (raised("HttpError", code=401), StoreCredentialsError),
        (raised("HttpError", code=500), StoreError),
        (OSError("Forbidden: https://storage.googleapis.com/b"), StoreForbiddenError),
        (OSError(errno.EROFS, "planted"), StoreForbiddenError),
        (OSError("planted"), StoreError),
    ],
)
def test_each_package_has_its_own_words_for_a_cause(error: Exception, kind: type[StoreError]) -> None:
    assert type(store_fault(error, "az://results/x", writing=True)) is kind
