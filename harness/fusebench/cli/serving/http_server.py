"""`fusebench eval --serve`: evaluations over HTTP, for programs on this machine.

`POST /evaluate` takes an `Order` as JSON and answers with a task; `GET /tasks/ID` gives its state and, once it is done, the document that
`eval --json` prints; `GET /health` lists the devices and their queues.  An error is `{"error": "..."}`.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
from typing import Any

import msgspec
import typer
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ... import __version__
from ...errors import FusebenchError, UsageError
from ...report.escape import json_document, text
from ...schema.evaluation import Stage
from ..shared.evaluation_work import MOST_SOURCE_BYTES
from ..shared.output import remark
from .evaluation_queue import Answer, EvaluationQueue, Order, QueueFullError

MOST_BODY_BYTES = 2 * MOST_SOURCE_BYTES
"""A body of more is refused as it arrives: JSON writes a source in less than twice its bytes, unless every letter is escaped."""
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_SECONDS_TO_END = 3


def make_app(evaluations: EvaluationQueue, host: str = "127.0.0.1") -> Starlette:
    """The application.

    Only requests that name this machine as their host, and whose body is declared as JSON, are answered: a page in a browser can send
    neither to another origin without its consent.
    """

    async def evaluate(request: Request) -> Response:
        try:
            order = msgspec.json.decode(await _body(request), type=Order)
            task = await run_in_threadpool(evaluations.submit, order)
        except _RefusedError as error:
            return _error(error.status, str(error))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return _error(400, f"{error}; the keys are {', '.join(Order.__struct_fields__)}; stage is one of {', '.join(Stage)}")
        except FusebenchError as error:
            return _error(503 if isinstance(error, QueueFullError) else 422, str(error))
        return _json(202, evaluations.answer(task.id))

    async def task(request: Request) -> Response:
        answer = evaluations.answer(request.path_params["task"])
        return _error(404, "no such task; finished ones are kept until 256 others are done") if answer is None else _json(200, answer)

    async def health(request: Request) -> Response:
        return _json(200, {"status": "ok", "fusebench": __version__, "devices": evaluations.health()})

    routes = [
        Route("/evaluate", evaluate, methods=["POST"]),
        Route("/tasks/{task}", task, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
    ]
    allowed = [*_LOCAL_HOSTS, host] if _is_local(host) else ["*"]
    return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=allowed, www_redirect=False)])


def serve(evaluations: EvaluationQueue, host: str, port: int) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Raises:
        UsageError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise UsageError(
            f"--host {host} --port {port}: cannot be listened on ({error.strerror}); pass another --port, or 0 for any"
        ) from error
    if not _is_local(host):
        remark("warning", f"whoever reaches {host} can run code on this machine's devices; without --host only this machine can")
    config = uvicorn.Config(
        make_app(evaluations, host), log_level="warning", lifespan="off", timeout_graceful_shutdown=_SECONDS_TO_END, access_log=False
    )
    shown = f"[{host}]" if ":" in host else host
    devices = ", ".join(str(one["device"]) for one in evaluations.health())
    typer.echo(f"serving http://{shown}:{listening.getsockname()[1]} on {text(devices)}; Ctrl-C ends it", err=True)
    sys.stderr.flush()
    try:
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:  # uvicorn raises again the signal that it ended by
        typer.echo("stopped", err=True)
    finally:
        listening.close()


class _RefusedError(Exception):
    """A request whose body is not read to its end."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def _body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise _RefusedError(415, f"found content type {kind or 'none'}, expected application/json")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MOST_BODY_BYTES:
                raise _RefusedError(413, f"the body has more than {MOST_BODY_BYTES} bytes, the most that a request may have")
    except ClientDisconnect as error:
        raise _RefusedError(400, "the client left") from error
    return bytes(body)


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _json(status: int, document: Answer | dict[str, Any] | None) -> Response:
    return Response(json_document(msgspec.json.encode(document).decode()), status, media_type="application/json")


def _error(status: int, message: str) -> Response:
    headers = {"Retry-After": "5"} if status == 503 else None
    return Response(msgspec.json.encode({"error": text(message)[:2000]}), status, headers, media_type="application/json")
