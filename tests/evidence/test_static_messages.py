"""Whatever a kernel file writes into the pipe of the process that compiles it, the reader soon has a report, or an error that says so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fusebench.errors import FusebenchError
from fusebench.evidence import collecting
from fusebench.evidence.collecting import collect
from fusebench.evidence.disassembly import Instructions
from fusebench.evidence.evidence_cache import EvidenceCache
from fusebench.evidence.records import (
    AmdRegisters,
    CapturedCase,
    CapturedKernel,
    CapturedLaunch,
    Code,
    StaticReport,
    StaticStatus,
    Toolchain,
)  # fmt: skip
from fusebench.evidence.static_process import (
    Assembled,
    Done,
    FileEndedWorkerError,
    ForeignMessageError,
    Importing,
    NotCompiled,
    Progress,
    Recorded,
    Request,
    StaticWorkerError,
    answers,
    read_message,
)  # fmt: skip
from fusebench.evidence.targets import target
from fusebench.registry import load_collection
from fusebench.schema import Case, Language, Role
from helpers.mutations import refused

ROOT = Path(__file__).parents[1] / "static_project" / "kernels"
CASES = [Case(suite="unit_sum", name=f"rows_{rows}", op="unit_sum", params={"rows": rows, "columns": 64}) for rows in (1, 2)]
KEYS = ["0" * 64, "ab" * 32]
CODE = Code(
    entry="k", compiler="triton 3", sha256="0" * 64, size=640, registers=40, stack=0, spill_stores=0, spill_loads=0, static_shared=1024,
    block_barriers=1, dynamic_shared=512, threads=128, instructions=Instructions(total=40, global_loads={16: 2}),
    amd=AmdRegisters(accumulation=0, scalar=16, spilled_vector=0, spilled_scalar=0),
)  # fmt: skip
LAUNCHES = tuple(CapturedLaunch(key, (4096, 1, 1), threads, 0) for key, threads in zip(KEYS, (None, 256), strict=True))
KERNEL = CapturedKernel(
    kernel="unit_sum/unchanged@1", role=Role.FUSED, language=Language.TRITON, status=StaticStatus.COMPILED, launches=LAUNCHES
)
MESSAGES = [
    Progress("load the kernels", 0, 0), Importing(""), Recorded(0, CapturedCase(kernels=(KERNEL,))),
    Recorded(1, CapturedCase(kernels=(KERNEL,))), Assembled(KEYS[0], CODE), NotCompiled(KEYS[1], "out of registers"), Done(),
]  # fmt: skip
Collect = Callable[[bytes], StaticReport]


def lines(*messages: object) -> bytes:
    return b"".join(msgspec.json.encode(message) + b"\n" for message in messages)


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """`said(content)`: the process that records and compiles writes this, and ends."""
    file, script = tmp_path / "said", tmp_path / "worker"
    script.write_text(f"#!/bin/sh\ncat > /dev/null\nexec cat {file}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    return lambda content: file.write_bytes(content) and None


@pytest.fixture
def collected(said: Callable[[bytes], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Collect]:
    """`collected("sm_90")(content)`: the report from what the process says."""
    monkeypatch.setattr(collecting, "toolchain", lambda: Toolchain(triton="3", ptxas="", ptxas_blackwell="", nvrtc="", nvdisasm=""))
    monkeypatch.setattr(collecting, "fingerprint", lambda roots, tools: "0" * 64)
    ops = load_collection([ROOT], kernels=False, entry_points=False).ops
    calls = iter(range(10**6))

    def of(name: str) -> Collect:
        def read(content: bytes) -> StaticReport:
            said(content)
            cache = EvidenceCache(tmp_path / "cache" / str(next(calls)))
            return collect(CASES, target(name), ops=ops, roots=[ROOT], cache=cache)

        return read

    return of


@pytest.mark.parametrize("name", ["sm_90", "gfx942"])
@pytest.mark.parametrize("count", [40, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_mutated_messages_give_a_report_or_an_error(collected: Callable[[str], Collect], name: str, count: int, tmp_path: Path) -> None:
    read, content = collected(name), lines(*MESSAGES)
    report = read(content)
    assert [one.status for one in report.results] == [StaticStatus.COMPILE_ERROR] * 2
    before = set(tmp_path.iterdir())
    assert refused(content, read, count) > count / 10, "the mutations are seen"
    assert set(tmp_path.iterdir()) == before, "no key of a message leads out of the cache"


HOSTILE = {
    "no JSON": b"Traceback (most recent call last):\n",
    "no UTF-8": b'{"type":"broken","reason":"\xff"}\n',
    "a case that nobody asked for": lines(Recorded(2, CapturedCase(kernels=()))),
    "a case before the first": lines(Recorded(0, CapturedCase(kernels=()))).replace(b'"index":0', b'"index":-1'),
    "an end before the last case": lines(MESSAGES[2], Done()),
    "a name that is none": lines(*MESSAGES).replace(b"unit_sum/unchanged@1", b"unit_sum"),
    "no block": lines(*MESSAGES[:4], Assembled(KEYS[0], msgspec.structs.replace(CODE, threads=0)), Done()),
    "a block of unknown size": lines(*MESSAGES[:4], Assembled(KEYS[0], msgspec.structs.replace(CODE, threads=None)), Done()),
    "fewer than no registers": lines(*MESSAGES[:4], Assembled(KEYS[0], msgspec.structs.replace(CODE, registers=-3)), Done()),
    "a path": lines(*MESSAGES).replace(KEYS[0].encode(), b"../../../../planted"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_foreign_message_is_named(collected: Callable[[str], Collect], name: str) -> None:
    with pytest.raises(ForeignMessageError, match="seems to have written into its pipe"):
        collected("sm_90")(HOSTILE[name])


def test_a_file_that_writes_into_the_pipe_is_left_out(said: Callable[[bytes], None]) -> None:
    request = Request(roots=(str(ROOT),), target="sm_90", cases=(), compilers={}, kernel=None, cache=None, jobs=1)
    said(lines(Importing("noisy.py")) + b"hello\n" + lines(Done()))
    with pytest.raises(FileEndedWorkerError, match=r"noisy\.py: its import wrote into the pipe"):  # a real process leaves it out next time
        list(answers(request))


def test_messages_that_end_too_early_are_no_report(collected: Callable[[str], Collect]) -> None:
    with pytest.raises(StaticWorkerError, match="ended with exit code"):
        collected("sm_90")(lines(*MESSAGES[:-1]))


def test_nesting_without_end_is_refused() -> None:
    for text in (b"[" * 10**6, b'{"type":' * 10**5):
        with pytest.raises(FusebenchError):
            read_message(text)
