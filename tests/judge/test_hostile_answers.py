"""Whatever a hostile process writes into the judge's pipe, the judge soon has an answer or someone to blame, in bounded memory."""

from __future__ import annotations

import os
import random
import struct
import threading
import time
import tracemalloc
from typing import Any

import msgspec
import pytest
import torch

from fusebench.errors import FusebenchError
from fusebench.judge.channel.protocol import (
    ANSWER_BYTES,
    ANSWERS,
    BatchDone,
    CallDone,
    CaseOpened,
    Channel,
    ChannelClosedError,
    ChannelTimeoutError,
    CompiledLaunch,
    Described,
    Inspect,
    Inspected,
    Load,
    Loaded,
    Mark,
    Prepared,
    ProtocolError,
    Refused,
    TensorSpec,
    YardstickDone,
    same_token,
)
from fusebench.judge.channel.region import Region
from fusebench.judge.exchange import Exchange
from fusebench.judge.failures import CandidateError
from fusebench.judge.patience import Limits, Patience
from fusebench.schema import Bitwise, Close, Language
from fusebench.schema.evaluation import EvaluationStatus, IsolationMeasure

LONGEST_S = 1.0
TOKEN = "0123456789abcdef" * 2
DONE = CallDone(span_ns=1200, outputs=(TensorSpec(-1, "float32", 0, (4, 8), (8, 1)), TensorSpec(0, "float32", 16, (4,), (1,))), shared=(0,))
MESSAGES: list[msgspec.Struct] = [
    Prepared(token=TOKEN, isolation=(IsolationMeasure(name="seccomp", active=True),), timer="cupti"),
    Mark(token=TOKEN),
    Loaded(token=TOKEN, kernel="toy/candidate@1", language=Language.TORCH),
    CaseOpened(token=TOKEN, declined="no", contract=Close(1.5)),
    CaseOpened(token=TOKEN, declined=None, contract=Bitwise("toy/split@1")),
    BatchDone(token=TOKEN, calls=(DONE, CallDone(span_ns=1, outputs=None)), late_share=0.1),
    Inspected(token=TOKEN, tampering="time.sleep was replaced"),
    Refused(token=TOKEN, status=EvaluationStatus.CRASHED, reason="ValueError: no"),
    YardstickDone(token=TOKEN, limit_us=3.5),
    Described(
        token=TOKEN,
        launches=(CompiledLaunch(registers=32, spills=0, shared=64, threads=128, barriers=1),),
        compiled=1,
        compile_us={"ttir": 7000, "cubin": 90000},
    ),
]
HOSTILE_PIECES = [
    b"\xc0", b"\xc2", b"\x80", b"\x90", b"\xa0", b"\xd9\xff", b"\xdb\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7), b"\xcb\x7f\xf8" + bytes(6),
    b"\xcb\x7f\xf0" + bytes(6), b"\x91" * 3000, b"\x81\xa1x" * 3000, b"\xa2\xed\xa0", b"\xa4type", b"\xa5token", b"\xd4\xff\x00",
]  # fmt: skip
"""Heads of msgpack: empty, endless and nested containers, the largest and smallest numbers, NaN, no UTF-8, extensions."""
NUMBERS = [0, -1, 1, 3, 4, 5, 8, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63), 2**64 - 1]
TEXTS = ["", "float64", "int8", "complex128", "quint8", "qint32", "bits16", "bool", "float8_e4m3fn", "float4_e2m1fn_x2", "nn", "uint8"]


def mutated_bytes(content: bytes, draw: random.Random) -> bytes:
    """`content` with one to four changes."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        place = draw.randrange(len(content) + 1)
        match draw.randrange(5):
            case 0:
                content = content[:place]
            case 1:
                content = content[:place] + bytes([draw.randrange(256)]) + content[place + 1 :]
            case 2:
                content = content[:place] + content[place + draw.randrange(1, 20) :]
            case 3:
                content = content[:place] + content[max(0, place - draw.randrange(1, 40)) :]
            case _:
                content = content[:place] + draw.choice(HOSTILE_PIECES) + content[place + draw.randrange(3) :]
    return content


def mutated_value(value: Any, draw: random.Random, share: float) -> Any:
    """`value`, plain data, with numbers, texts and lists replaced: each with probability `share`."""
    if isinstance(value, dict):
        return {key: one if key in ("type", "token") else mutated_value(one, draw, share) for key, one in value.items()}
    if isinstance(value, list):
        items = [mutated_value(one, draw, share) for one in value]
        if draw.random() < share:
            items = draw.choice((items[:-1], items + items[-1:], [], items * 3))
        return items
    if draw.random() >= share:
        return value
    if isinstance(value, int):
        return draw.choice(NUMBERS)
    if isinstance(value, float):
        return draw.choice((float("nan"), float("inf"), -1.0, 1e308))
    return draw.choice(TEXTS) if isinstance(value, str) else None


def frame(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def answer_to(data: bytes, *, seconds: float = 5.0, most: int = ANSWER_BYTES) -> object:
    """What the judge receives of a process that writes `data` and ends; an error as itself."""
    reading, writing = os.pipe()
    unused, other = os.pipe()
    os.close(unused)

    def write() -> None:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(writing, rest) :]
        except BrokenPipeError:
            pass  # the judge has closed the pipe
        finally:
            os.close(writing)

    channel = Channel(reading, other)
    writer = threading.Thread(target=write) if len(data) > 1 << 15 else None
    try:
        if writer is not None:
            writer.start()
        else:
            write()
        return channel.receive(ANSWERS, deadline=time.monotonic() + seconds, most=most)
    except FusebenchError as error:
        return error
    finally:
        channel.close()
        if writer is not None:
            writer.join()


def fuzz_frames(count: int, seed: int) -> None:
    draw = random.Random(seed)
    bodies = [msgspec.msgpack.encode(message) for message in MESSAGES]
    kinds: set[type] = set()
    for _ in range(count):
        body = mutated_bytes(draw.choice(bodies), draw)
        data = frame(body) if draw.random() < 0.8 else mutated_bytes(frame(body), draw)
        began = time.thread_time()
        found = answer_to(data)
        assert time.thread_time() - began < LONGEST_S
        assert isinstance(found, (ProtocolError, ChannelClosedError, msgspec.Struct)), repr(found)
        if isinstance(found, msgspec.Struct) and hasattr(found, "token"):
            assert isinstance(same_token(str(found.token), TOKEN), bool)
        kinds.add(type(found))
    assert {ProtocolError, ChannelClosedError} < kinds


def test_a_sample_of_mutated_frames_is_answered_or_refused() -> None:
    fuzz_frames(400, seed=1)


@pytest.mark.exhaustive
def test_ten_thousand_mutated_frames_are_answered_or_refused() -> None:
    fuzz_frames(10_000, seed=2)


def test_unmutated_messages_arrive() -> None:
    for message in MESSAGES:
        assert answer_to(frame(msgspec.msgpack.encode(message))) == message


@pytest.mark.parametrize(
    "body",
    [
        b"\x83\xa4type\xaabatch_done\xa5token\xa1x\xa5calls\xdd\xff\xff\xff\xff",
        b"\x83\xa4type\xaabatch_done\xa5token\xa1x\xa5calls\x91\x82\xa7span_ns\x01\xa7outputs\xdd\x00\x02\xaa\x00"
        + b"\x95\x00\xa0\x00\x90\x90" * 0x2AA00,
        b"\x83\xa4type\xa7refused\xa5token\xda\xff\xff" + b"x" * 0xFFFF,
        b"\xdd\xff\xff\xff\xff" * 200_000,
        b"\x91" * (ANSWER_BYTES - 1),
    ],
    ids=["endless", "many_small", "long_text", "nested_endless", "deep"],
)
def test_a_small_frame_makes_no_large_objects(body: bytes) -> None:
    assert len(body) <= ANSWER_BYTES
    answer_to(frame(msgspec.msgpack.encode(MESSAGES[0])))
    tracemalloc.start()
    try:
        began = time.thread_time()
        answer_to(frame(body))
        assert time.thread_time() - began < LONGEST_S
        assert tracemalloc.get_traced_memory()[1] < 40 * ANSWER_BYTES
    finally:
        tracemalloc.stop()


def test_a_frame_that_announces_too_much_is_not_waited_for() -> None:
    found = answer_to(struct.pack("<I", ANSWER_BYTES + 1))
    assert isinstance(found, ProtocolError)
    assert str(ANSWER_BYTES + 1) in str(found)


def test_a_process_that_falls_silent_within_a_frame_is_not_waited_for() -> None:
    reading, writing = os.pipe()
    channel = Channel(reading, writing)
    os.write(writing, struct.pack("<I", 100) + b"\x80")
    with pytest.raises(ChannelTimeoutError):
        channel.receive(ANSWERS, deadline=time.monotonic() + 0.05)
    channel.close()


def test_a_process_that_does_not_read_is_not_waited_for() -> None:
    """The pipe holds 64 KiB; a request beyond that would block the judge for ever."""
    reading, writing = os.pipe()
    channel = Channel(reading, writing)
    with pytest.raises(ChannelTimeoutError):
        channel.send(Load(token=TOKEN, op="toy", source=bytes(1 << 20)), deadline=time.monotonic() + 0.05)
    channel.close()


def test_long_texts_and_foreign_letters_of_a_process_raise_nothing_else() -> None:
    for message in (
        Refused(token=TOKEN, status=EvaluationStatus.CRASHED, reason="x" * 3000),
        Loaded(token=TOKEN, kernel="x", language="c"),
    ):  # type: ignore[arg-type]
        assert isinstance(answer_to(frame(msgspec.msgpack.encode(message))), ProtocolError)
    assert not same_token("tökén\u0000", TOKEN)


class _Process:
    """A process that answers every batch with mutated results."""

    def __init__(self, draw: random.Random) -> None:
        self.region = Region.make()
        self.marks = [0.0, 1.0]
        self.confined = True
        self._draw = draw

    def cpu_ns(self) -> int:
        return 0

    def ask(self, request: Any, kind: type, *, doing: str, patience: Patience) -> tuple[Any, float]:
        if isinstance(request, Inspect):
            done: Any = Inspected(token=TOKEN)
        else:
            done = BatchDone(token=TOKEN, calls=(msgspec.structs.replace(DONE, shared=()),) * len(request.calls))
        plain = msgspec.msgpack.decode(msgspec.msgpack.encode(done))
        try:
            return ANSWERS.decode(msgspec.msgpack.encode(mutated_value(plain, self._draw, self._draw.choice((0.02, 0.1, 0.5))))), 1.0
        except msgspec.MsgspecError:
            raise CandidateError(EvaluationStatus.HACKED, "no message") from None


@pytest.fixture
def arguments() -> list[dict[str, Any]]:
    return [{"x": torch.ones(64)[8:], "eps": 1e-6}, {"x": torch.ones(64)[8:], "eps": 1e-6}]


def fuzz_batches(count: int, seed: int, arguments: list[dict[str, Any]]) -> None:
    draw = random.Random(seed)
    exchange = Exchange(_Process(draw), (torch.ones(4, 8), torch.ones(4)))  # type: ignore[arg-type]
    outcomes = {"delivered": 0, "blamed": 0}
    for _ in range(count):
        began = time.thread_time()
        try:
            returned, _ = exchange.run(arguments, limits=Limits(time.monotonic() + 5), doing="a batch")
            for one, keywords in zip(returned, arguments, strict=True):
                for output in one.deliver(keywords) or ():
                    assert isinstance(output, torch.Tensor)
            outcomes["delivered"] += 1
        except CandidateError:
            outcomes["blamed"] += 1
        assert time.thread_time() - began < LONGEST_S
    assert min(outcomes.values()) > count / 20


def test_a_sample_of_mutated_results_is_delivered_or_blamed(arguments: list[dict[str, Any]]) -> None:
    fuzz_batches(300, 3, arguments)


@pytest.mark.exhaustive
def test_ten_thousand_mutated_results_are_delivered_or_blamed(arguments: list[dict[str, Any]]) -> None:
    fuzz_batches(10_000, 4, arguments)
