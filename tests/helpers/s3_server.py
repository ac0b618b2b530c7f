"""An S3 server on this machine, whose answers a test can spoil: refused, dropped, truncated."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

BUCKET = "results"
ENDPOINT, KEY, SECRET = "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"

Environ = dict[str, Any]
Wsgi = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


def error_500(environ: Environ, start: Callable[..., Any], _: Wsgi) -> Iterable[bytes]:
    return _answer(environ, start, "500 Internal Server Error", "InternalError")


def read_only(environ: Environ, start: Callable[..., Any], _: Wsgi) -> Iterable[bytes]:
    return _answer(environ, start, "403 Forbidden", "AccessDenied")


def bad_key(environ: Environ, start: Callable[..., Any], _: Wsgi) -> Iterable[bytes]:
    return _answer(environ, start, "403 Forbidden", "InvalidAccessKeyId")


def dropped(environ: Environ, _: Callable[..., Any], __: Wsgi) -> Iterable[bytes]:
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError


def truncated(environ: Environ, start: Callable[..., Any], app: Wsgi) -> Iterable[bytes]:
    """The server keeps half of an upload, and says that all is well."""
    body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    half = body[: len(body) // 2]
    return app({**environ, "wsgi.input": io.BytesIO(half), "CONTENT_LENGTH": str(len(half))}, start)


class Server:
    """The server.  `faults` are taken in turn by requests whose method and path `spoils` names."""

    def __init__(self) -> None:
        import logging

        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.requests: list[tuple[str, str]] = []
        self._faults: list[Callable[..., Iterable[bytes]]] = []
        self._spoils: Callable[[str, str], bool] = lambda *_: False
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __call__(self, environ: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append((method, path))
        if self._faults and self._spoils(method, path):
            return self._faults.pop(0)(environ, start, self._app)
        answer: Iterable[bytes] = self._app(environ, start)
        return answer

    def spoil(self, *faults: Callable[..., Iterable[bytes]], method: str = "PUT", path: str = "", times: int = 1) -> None:
        self._faults = list(faults) * times
        self._spoils = lambda asked, where: asked == method and path in where

    def clear(self) -> None:
        import urllib.request

        self.spoil()
        reset = urllib.request.Request(f"{self.url}/moto-api/reset", method="POST")
        urllib.request.urlopen(reset).close()
        made = urllib.request.Request(f"{self.url}/{BUCKET}", method="PUT", headers=_SIGNED)
        urllib.request.urlopen(made).close()
        self.requests.clear()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


_SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"}


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Server]:
    """The server with an empty bucket, credentials for it, and no pauses between attempts."""
    monkeypatch.setenv(ENDPOINT, s3_server.url)
    monkeypatch.setenv(KEY, "key")
    monkeypatch.setenv(SECRET, "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setattr("fusebench.store.remote.files.FIRST_PAUSE_S", 0.0)
    s3_server.clear()
    yield s3_server
    s3_server.spoil()


def _answer(environ: Environ, start: Callable[..., Any], status: str, code: str) -> Iterable[bytes]:
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    start(status, [("Content-Type", "application/xml")])
    return [f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>planted</Message></Error>".encode()]
