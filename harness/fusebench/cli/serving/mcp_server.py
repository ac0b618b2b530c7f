"""`fusebench eval --mcp`: the tool `evaluate_kernel` for language models, over stdin and stdout."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal

import anyio
import msgspec
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from ... import __version__
from ...errors import FusebenchError
from ...report.escape import text
from ..shared.evaluation_work import MOST_SOURCE_BYTES
from .evaluation_queue import EvaluationQueue, Order, State

_POLL_S = 0.05
_DESCRIPTION = f"""Judge one GPU kernel: is it right, and how fast beside the split chain?

The kernel is one Python file with one function decorated by @kernel of fusebench, passed as `source` (its text, at most {MOST_SOURCE_BYTES}
bytes) or as `file` (its path below the server's folder).  `op` is the op that it declares.  `stage` is check (a few small cases, seconds),
quick (compared and timed) or final (also unseen shapes).  `suite` and `case` choose shapes; by default the op's own suite.

The answer is the JSON document of `fusebench eval --json`: status (passed, wrong, crashed, hung, compile_error, out_of_memory, suspicious,
hacked, unsupported, invalid, undecided, unfit), reason, first_failure, speedup with its interval, sol (share of the memory limit),
registers, spills, remarks, and next_command."""


def make_server(evaluations: EvaluationQueue, ops: list[str]) -> MCPServer:
    """The server with its one tool; `ops` are the names that the tool takes."""
    server = MCPServer("fusebench", version=__version__, instructions=f"Judges GPU kernels of these ops: {', '.join(ops)}.")

    @server.tool(name="evaluate_kernel", description=_DESCRIPTION)
    async def evaluate_kernel(
        *,
        op: str,
        source: str | None = None,
        file: str | None = None,
        stage: Literal["check", "quick", "final"] = "quick",
        suite: list[str] | None = None,
        case: str | None = None,
        device: str = "auto",
        seconds: float | None = None,
        memory_bytes: int | None = None,
    ) -> dict[str, Any]:
        given = {
            "op": op, "source": source, "file": file, "stage": stage, "suite": suite, "case": case, "device": device, "seconds": seconds,
            "memory_bytes": memory_bytes,
        }  # fmt: skip
        try:
            order = msgspec.convert(given, Order)
            task = await anyio.to_thread.run_sync(evaluations.submit, order)
        except (FusebenchError, msgspec.ValidationError) as error:
            raise ToolError(text(str(error))) from error
        try:
            while not task.finished.is_set():
                await anyio.sleep(_POLL_S)
        except anyio.get_cancelled_exc_class():
            evaluations.cancel(task)
            raise
        if task.state is State.FAILED:
            raise ToolError(text(task.error))
        return dict(msgspec.to_builtins(task.evaluation))

    return server


def serve(evaluations: EvaluationQueue, ops: list[str]) -> None:
    """Serve until stdin ends, or a client that has no time to wait for that sends a signal."""
    with suppress(KeyboardInterrupt):
        make_server(evaluations, ops).run("stdio")
