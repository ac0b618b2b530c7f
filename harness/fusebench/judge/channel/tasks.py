"""The messages between the command line and the judge, who trust each other; the pipe is that of `protocol`."""

from __future__ import annotations

import msgspec

from ...schema import Case
from ...schema.evaluation import Evaluation, Stage


class Expect(msgspec.Struct, frozen=True, kw_only=True, tag="expect"):
    """A task will follow, and this is known of it: start what needs no more.  The fields are those of `EvaluateTask`."""

    roots: tuple[str, ...]
    stage: Stage
    memory_bytes: int | None
    device: str


class EvaluateTask(msgspec.Struct, frozen=True, kw_only=True, tag="evaluate"):
    """An `EvaluationRequest`, and the device."""

    roots: tuple[str, ...]
    file: str
    shown: str
    """The file's path as the user gave it."""
    op: str
    cases: tuple[Case, ...]
    stage: Stage
    seconds: float
    memory_bytes: int | None
    device: str
    """Torch's name of the device."""
    device_name: str
    keep: bool = False
    """Whether another evaluation may follow, for which a process is started ahead."""


class Step(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """From the judge to the command line: a sign of life."""

    text: str
    done: int = 0
    total: int = 0
    case: int = 0
    """Number of the case that begins, from 1; 0 within a case."""
    cases: int = 0


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    """From the judge to the command line: the document."""

    evaluation: Evaluation


class Unable(msgspec.Struct, frozen=True, kw_only=True, tag="unable"):
    """From the judge to the command line: the project or the request is at fault, not the candidate."""

    reason: str


Report = Step | Finished | Unable
REPORTS: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
TASKS: msgspec.msgpack.Decoder[Expect | EvaluateTask] = msgspec.msgpack.Decoder(Expect | EvaluateTask)
