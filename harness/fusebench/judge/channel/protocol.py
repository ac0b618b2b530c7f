"""The messages between the judge and the processes that call kernels, and the pipe that carries them.

A candidate's process may write anything into its pipe.  So a frame has a bounded size, its content is msgpack that must fit one of a few
structs (never pickle), and every answer repeats the random token of its request, which nobody can know beforehand.
"""

from __future__ import annotations

import os
import secrets
import select
import struct
import time
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from ...errors import FusebenchError
from ...schema import Contract, Language
from ...schema.evaluation import EvaluationStatus, IsolationMeasure

MOST_BYTES = 16 * 2**20
"""Largest accepted frame: a batch of a hundred calls describes itself in some 100 kB."""
ANSWER_BYTES = 2**20
"""Largest frame that is accepted of a candidate; its msgpack decodes to at most twenty times as much memory."""
MOST_TEXT = 2000
"""Characters of a text of the candidate that are kept; a longer one is no message."""
_HEADER = struct.Struct("<I")
_Text = Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]
_Dimensions = Annotated[tuple[int, ...], msgspec.Meta(max_length=8)]
"""Of a tensor that crosses the border."""


class Prepare(msgspec.Struct, frozen=True, kw_only=True, tag="prepare"):
    """The first request of a process: confine yourself and import torch."""

    token: str
    roots: tuple[str, ...]
    """Kernel folders of the project, which it may read."""
    device: str
    interpret: bool
    """Whether Triton kernels run in the interpreter."""
    scratch: str
    """The only folder that it may write to; empty for a trusted process, which is not confined."""
    memory_bytes: int | None
    timed: bool
    """Whether times will be asked for; a GPU's profiler need not start otherwise."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True, tag="prepared"):
    token: str
    isolation: tuple[IsolationMeasure, ...] = ()
    timer: _Text = ""
    timer_fallback: _Text = ""
    """Why the timer is not the device's default; empty if it is."""
    start_s: dict[_Text, float] = {}
    """Seconds by step of the start."""


class Mark(msgspec.Struct, frozen=True, kw_only=True, tag="mark"):
    """Before the first call of a batch, and after the last one: what lies between by the judge's clock has no copies in it."""

    token: str


class Load(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """Load the op and one kernel of it: from `file`, or the project's kernel `kernel`."""

    token: str
    op: str
    file: str = ""
    source: bytes = b""
    """The candidate's bytes that the judge digested."""
    kernel: str = ""


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    token: str
    kernel: _Text
    language: Language


class OpenCase(msgspec.Struct, frozen=True, kw_only=True, tag="open_case"):
    """The case that the next batches are of: does the kernel take it, and what does it promise?"""

    token: str
    params: dict[str, Any]


class CaseOpened(msgspec.Struct, frozen=True, kw_only=True, tag="case_opened"):
    token: str
    declined: _Text | None
    """Why the kernel does not take the case; None if it does."""
    contract: Contract | None = None


class ArenaSpec(msgspec.Struct, frozen=True, array_like=True):
    """Where in the shared memory the bytes of one arena lie: a buffer between its guards."""

    start: int
    nbytes: int
    misalignment: int
    """The arena's address modulo the alignment of buffers, which its copy must have too."""


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """A strided view; `offset` and `stride` count elements from the arena's (or the output area's) start."""

    arena: int
    """Number of the arena; -1 for an output in memory of its own."""
    dtype: _Text
    offset: int
    size: _Dimensions
    stride: _Dimensions


class CallSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One call: its arenas, and the op's arguments as views of them."""

    arenas: tuple[ArenaSpec, ...]
    tensors: dict[str, TensorSpec]
    options: dict[str, Any]
    """Every argument that is no tensor; None for an optional tensor that the call leaves out."""
    output_start: int
    """Where in the shared memory new outputs go, one after the other."""
    output_bytes: int


class Batch(msgspec.Struct, frozen=True, kw_only=True, tag="batch"):
    """The only kind of request once a case is open: make these calls, time each, and hand every output back."""

    token: str
    region_bytes: int
    """Size of the shared memory by now."""
    calls: tuple[CallSpec, ...]
    expected: tuple[TensorSpec, ...]
    """Shapes and dtypes of the outputs."""


class CallDone(msgspec.Struct, frozen=True, kw_only=True):
    """What one call left behind.  `outputs` is None where the kernel returned None."""

    span_ns: int
    outputs: tuple[TensorSpec, ...] | None
    """A new output lies in the output area, packed, with its strides of origin here; one that is a view of an argument's arena says so."""
    strange: _Text = ""
    """Why the return value cannot be handed over: a tensor subclass, another device, an unwritten storage."""
    shared: tuple[int, ...] = ()
    """Numbers of earlier calls of the batch whose returned memory this call returned again."""
    written: _Text = ""
    """Names of inputs that the call wrote to, restored or not; known on a CPU only."""
    launches: int = 0


class BatchDone(msgspec.Struct, frozen=True, kw_only=True, tag="batch_done"):
    token: str
    calls: tuple[CallDone, ...]
    late_share: float = 0.0
    """CPU time of other threads after calls had returned, as a share of the calls' time or of a quiet time after the last one."""
    calls_cpu_ns: int = 0
    """CPU time that the calls took in the calling thread; 0 on a GPU.  Believed of the baseline only."""
    others_cpu_ns: int = 0
    """CPU time that other threads took during the calls; 0 on a GPU.  It excuses CPU time, and earns nothing."""
    untimed: _Text = ""
    """Why the calls have no times; empty if they have."""
    late_calls: int = 0
    """Calls in which the device waited for the host; 0 on a CPU.  Believed of the baseline only."""


class Inspect(msgspec.Struct, frozen=True, kw_only=True, tag="inspect"):
    """After a batch: was anything of the harness replaced?

    A request of its own, since it takes milliseconds: within a batch, a candidate that spared the process this work could hide as much of
    its own behind it.
    """

    token: str


class Inspected(msgspec.Struct, frozen=True, kw_only=True, tag="inspected"):
    token: str
    tampering: _Text = ""
    """What was replaced; empty if nothing was."""


COMPILED_LAUNCHES = 8
"""Most specialisations that are described."""
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
CompileStep = Literal["ir", "ttir", "ttgir", "llir", "ptx", "cubin", "store"]
"""Triton's steps: Python to its first IR, its lowerings by their results (`cubin` is the assembler's), and the cache's files."""


class CompiledLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """One compiled specialisation; sizes are bytes."""

    registers: Annotated[int, msgspec.Meta(ge=0, le=255)]
    """Per thread."""
    spills: _Size
    """Spill stores and loads per thread."""
    shared: _Size
    """Per block, static and dynamic."""
    threads: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    barriers: Annotated[int, msgspec.Meta(ge=0, le=16)]


class Describe(msgspec.Struct, frozen=True, kw_only=True, tag="describe"):
    """The last request: what did the compiler say of the kernel's code?  The answer advises; no status follows from it."""

    token: str


class Described(msgspec.Struct, frozen=True, kw_only=True, tag="described"):
    token: str
    launches: Annotated[tuple[CompiledLaunch, ...], msgspec.Meta(max_length=COMPILED_LAUNCHES)] = ()
    compiled: _Size = 0
    """Specialisations that Triton compiled, those beyond `COMPILED_LAUNCHES` too."""
    compile_us: dict[CompileStep, Annotated[int, msgspec.Meta(ge=0, le=2**40)]] = {}
    """Microseconds that they took by step."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The request failed; the kernel or its file is to blame."""

    token: str
    status: EvaluationStatus
    reason: _Text


class Yardstick(msgspec.Struct, frozen=True, kw_only=True, tag="yardstick"):
    """To the baseline only: time the streaming yardstick of the open case."""

    token: str


class YardstickDone(msgspec.Struct, frozen=True, kw_only=True, tag="yardstick_done"):
    token: str
    limit_us: float


Answer = Prepared | Mark | Loaded | CaseOpened | BatchDone | Inspected | Described | Refused | YardstickDone
T = TypeVar("T")
Decoder = msgspec.msgpack.Decoder
ANSWERS: Decoder[Answer] = Decoder(Answer)
PREPARES: Decoder[Prepare] = Decoder(Prepare)
LOADS: Decoder[Load] = Decoder(Load)
Request = OpenCase | Batch | Inspect | Describe | Yardstick
REQUESTS: Decoder[Request] = Decoder(Request)


class ChannelClosedError(FusebenchError, EOFError):
    """The other process closed its end, or died."""


class ChannelTimeoutError(FusebenchError, TimeoutError):
    """The other process did not answer in time."""


class ProtocolError(FusebenchError, ValueError):
    """The other process wrote bytes that are no message, or the wrong one."""


def new_token() -> str:
    """A token that no other request has."""
    return secrets.token_hex(16)


def same_token(one: str, other: str) -> bool:
    """Whether two tokens are equal, in a time that does not depend on where they differ."""
    return secrets.compare_digest(one.encode(), other.encode())


class Channel:
    """Two pipe ends: frames of msgpack, each after its length."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd
        self._waiting = b""
        os.set_blocking(write_fd, False)

    def send(self, message: msgspec.Struct, *, deadline: float | None = None) -> None:
        """Write one message.

        Args:
            deadline: as `time.monotonic` has it; None waits for ever.

        Raises:
            ChannelClosedError, ChannelTimeoutError: nobody reads any more, or the other process does not.
        """
        body = msgspec.msgpack.encode(message)
        data = memoryview(_HEADER.pack(len(body)) + body)
        while data:
            try:
                data = data[os.write(self._write_fd, data) :]
            except BlockingIOError:
                self._wait(self._write_fd, select.POLLOUT, deadline)
            except OSError as error:
                raise ChannelClosedError(f"the pipe is closed: {error}") from error

    def receive(self, kind: Decoder[T], *, deadline: float | None = None, most: int = MOST_BYTES) -> T:
        """The next message, of a kind that the decoder knows.  After a timeout it can be asked for again.

        Args:
            deadline: as `time.monotonic` has it; None waits for ever.
            most: bytes of the largest message that is accepted.

        Raises:
            ChannelClosedError, ChannelTimeoutError, ProtocolError: see there.
        """
        header = self._take(_HEADER.size, deadline)
        (size,) = _HEADER.unpack(header)
        if size > most:
            raise ProtocolError(f"a message of {size} bytes; at most {most} are accepted")
        try:
            body = self._take(size, deadline)
        except ChannelTimeoutError:
            self._waiting = header + self._waiting
            raise
        try:
            return kind.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"no message of this protocol: {error}") from error

    def pending(self) -> bool:
        """Whether bytes wait that nobody asked for."""
        waits = select.poll()
        waits.register(self._read_fd, select.POLLIN)
        return bool(self._waiting) or bool(waits.poll(0) and self._peek())

    def _peek(self) -> bool:
        data = os.read(self._read_fd, 1 << 16)
        self._waiting += data
        return bool(data)

    def _take(self, size: int, deadline: float | None) -> bytes:
        parts, missing = [self._waiting[:size]], size - len(self._waiting[:size])
        self._waiting = self._waiting[size:]
        while missing:
            try:
                self._wait(self._read_fd, select.POLLIN, deadline)
            except ChannelTimeoutError:  # the caller may wait on
                self._waiting = b"".join(parts)
                raise
            try:
                data = os.read(self._read_fd, min(missing, 1 << 20))
            except OSError as error:
                raise ChannelClosedError(f"the pipe is closed: {error}") from error
            if not data:
                raise ChannelClosedError("the other process closed its end")
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    @staticmethod
    def _wait(fd: int, event: int, deadline: float | None) -> None:
        """Wait until a pipe can be read or written, or its other end is closed."""
        waits = select.poll()
        waits.register(fd, event)
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and (left <= 0 or not waits.poll(left * 1e3)):
            raise ChannelTimeoutError("no answer in time")
        if left is None:
            waits.poll()

    def close(self) -> None:
        """Close both ends."""
        for fd in (self._read_fd, self._write_fd):
            try:
                os.close(fd)
            except OSError:
                continue
