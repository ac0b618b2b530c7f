"""Registers, spills and remarks of a candidate: what follows from the compiler's figures, and one real compilation."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fusebench.evidence.targets import TARGETS
from fusebench.judge import compiled_code
from fusebench.judge.candidate.compiler_log import CompilerLog
from fusebench.judge.channel.protocol import ANSWERS, COMPILED_LAUNCHES, Channel, CompiledLaunch, Describe, Described, Loaded
from fusebench.judge.compiled_code import Compiled, CompiledCode, tells_itself
from fusebench.judge.confinement.landlock import landlock_abi
from fusebench.judge.evaluation import EvaluationRequest
from fusebench.judge.failures import CandidateError
from fusebench.judge.loaded_candidate import LoadedCandidate
from fusebench.judge.phases import Phases
from fusebench.schema import Case
from fusebench.schema.evaluation import Evaluation, EvaluationStatus, Stage
from judge.test_hostile_answers import LONGEST_S, frame, mutated_bytes

CPU: Any = SimpleNamespace(kind="cpu", name="Toy CPU", compute_capability=None)
STATIC_PROJECT = Path(__file__).parents[1] / "static_project"


def launch(**changes: int) -> CompiledLaunch:
    return CompiledLaunch(**{"registers": 32, "spills": 0, "shared": 0, "threads": 128, "barriers": 1} | changes)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (launch(), []),
        (launch(registers=255, spills=96, threads=64), ["96 bytes are spilled a thread at 255 registers", "occupancy is at most 12 %"]),
        (launch(shared=200_000), ["limited by shared"]),
    ],
)
def test_spills_and_low_occupancy_are_remarked_on(found: CompiledLaunch, said: list[str]) -> None:
    remarks = compiled_code._remarks(Compiled(token="", launches=(found,)), TARGETS["sm_90"], on_cpu=False)
    assert len(remarks) == len(said)
    assert all(text in remark for text, remark in zip(said, remarks, strict=True))


@pytest.mark.parametrize(
    "planted", [{"compiled": -1}, {"compile_us": {"<b>": 1}}, {"compile_us": {"ttir": -1}}, {"compile_us": {"ttir": 2**50}}]
)
def test_times_and_names_that_no_compiler_has_are_refused(planted: dict[str, Any]) -> None:
    forged = msgspec.msgpack.encode(Described(token="", **planted))
    with pytest.raises(msgspec.ValidationError):
        ANSWERS.decode(forged)


@pytest.mark.parametrize("planted", [{"registers": 256}, {"registers": -1}, {"threads": 0}, {"spills": 2**40}])
def test_figures_that_no_compiler_reports_are_refused(planted: dict[str, int]) -> None:
    """They come from a process that the candidate shares."""
    forged = msgspec.msgpack.encode(Compiled(token="", launches=(launch(**planted),)))
    with pytest.raises(msgspec.ValidationError):
        compiled_code._COMPILED.decode(forged)
    with pytest.raises(msgspec.ValidationError):
        ANSWERS.decode(msgspec.msgpack.encode(Described(token="", launches=(launch(**planted),))))


PTX = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p) .maxntid 128 { .reg .b64 %r<2>; ld.param.u64 %r1, [p]; st.global.u64 [%r1], %r1; ret; }
"""
LOG = "ptxas info : Compiling entry function '{}'\n0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\nUsed 40 registers"


def test_the_process_that_compiles_hears_what_the_assembler_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planted: a log of another kernel, a kernel out of a cache, and more kernels than are kept."""
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia import compiler

    monkeypatch.setattr(compiler, "print", print, raising=False)
    log, metadata = CompilerLog(), {"name": "k", "num_warps": 4, "shared": 64}
    with knobs.nvidia.scope(), knobs.compilation.scope():
        log.listen()
        backend = SimpleNamespace(target=GPUTarget("cuda", 90, 32))
        compiler.CUDABackend.make_cubin(backend, PTX, metadata, compiler.CUDAOptions(arch="sm_90"), 90)
        times = SimpleNamespace(ir_initialization=7, lowering_stages=[("ttir", 2), ("new_step", 3), ("cubin", 40)], store_results=1)
        for cache_hit in (False, True):
            knobs.compilation.listener(src=None, metadata=metadata, metadata_group={}, times=times, cache_hit=cache_hit)
        assert (log.compiled, log.compile_us) == (1, {"ir": 7, "ttir": 2, "cubin": 40, "store": 1})
        (found,) = log.launches
        assert (found.spills, found.shared, found.threads, capsys.readouterr().out) == (0, 64, 128, "")
        assert 0 < found.registers < 32
        for said in (LOG.format("other"), ""):
            compiler.print(said)
            knobs.compilation.listener(metadata=metadata)
        assert len(log.launches) == 1
        for _ in range(COMPILED_LAUNCHES):
            compiler.print(LOG.format("k"))
            knobs.compilation.listener(metadata=metadata)
        assert len(log.launches) == COMPILED_LAUNCHES
        assert log.launches[1] == launch(registers=40, spills=12, shared=64, barriers=0)
        capsys.readouterr()
        compiler.print("words of a failure")
        assert capsys.readouterr().out == "words of a failure\n"


@pytest.mark.parametrize(
    ("source", "kind", "told"),
    [
        ("@triton.jit", "cuda", True),
        ('from ._triton import launch\n@kernel("scale", "mine", version=1, language="triton")', "cuda", True),
        ("@triton.jit", "cpu", False),
        ("@triton.autotune(configs)\n@triton.jit", "cuda", False),
        ("@triton.jit\nnvrtc", "cuda", False),
        ("import torch", "cuda", False),
    ],
)
def test_no_other_process_compiles_what_the_judged_one_compiles(tmp_path: Path, source: str, kind: str, told: bool) -> None:
    file = tmp_path / "mine.py"
    file.write_text(source)
    assert tells_itself(request(file), SimpleNamespace(kind=kind)) is told  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "language", "alive", "registers"),
    [
        (
            Described(token="", launches=(launch(), launch(registers=60, spills=8)), compiled=2, compile_us={"llir": 340_400}),
            "triton",
            True,
            60,
        ),
        (Described(token=""), "triton", True, None),
        (CandidateError(EvaluationStatus.HUNG, "no answer"), "triton", True, None),
        (Described(token="", launches=(launch(),)), "torch", True, None),
        (Described(token="", launches=(launch(),)), "triton", False, None),
    ],
    ids=["told", "nothing", "hung", "torch", "dead"],
)
def test_the_judged_process_tells_its_code_and_a_failure_to_tell_changes_no_status(
    monkeypatch: pytest.MonkeyPatch, answer: Any, language: Any, alive: bool, registers: int | None
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))

    def ask(question: Any, kind: Any, **_: Any) -> Any:
        assert (type(question), kind) == (Describe, Described)
        if isinstance(answer, Exception):
            raise answer
        return answer, 0.0

    candidate: Any = LoadedCandidate.__new__(LoadedCandidate)
    candidate._loaded, candidate._phases = Loaded(token="", kernel="scale/mine@1", language=language), Phases()
    candidate._device, candidate._task = SimpleNamespace(type="cuda"), SimpleNamespace(device_name="NVIDIA H200")
    candidate._process = SimpleNamespace(alive=alive, ask=ask)
    found = candidate._with_code(Evaluation(status=EvaluationStatus.WRONG, op="scale", stage=Stage.CHECK))
    assert (found.status, found.registers) == (EvaluationStatus.WRONG, registers)
    assert (found.kernels_compiled, found.compile_s) == ((2, {"llir": 0.34}) if registers else (_told(answer, language, alive), {}))
    assert len(found.remarks) == (1 if registers else 0), "it spills"


def _told(answer: Any, language: str, alive: bool) -> int | None:
    return answer.compiled if isinstance(answer, Described) and language == "triton" and alive else None


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_whatever_the_process_that_compiles_writes_the_judgement_stands(tmp_path: Path, count: int) -> None:
    file, draw, told = tmp_path / "mine.py", random.Random(5), 0
    file.write_text("import triton")
    evaluation = Evaluation(status=EvaluationStatus.PASSED, op="unit_sum", stage=Stage.CHECK)
    compiled = CompiledCode(request(file), CPU)
    launches = tuple(launch(spills=spills, threads=threads) for spills, threads in ((0, 128), (96, 1024), (2**31, 1)))
    body = msgspec.msgpack.encode(Compiled(token=compiled._token, launches=launches, failure="out of registers"))
    for number in range(count):
        (reading, writing), (unused, other) = os.pipe(), os.pipe()
        os.write(writing, frame(mutated_bytes(body, draw) if number else body))
        os.close(writing)
        channel = Channel(reading, other)
        compiled._process = SimpleNamespace(channel=channel)  # type: ignore[assignment]
        used = time.thread_time()
        found = compiled.added_to(evaluation, wait_s=5.0)
        assert time.thread_time() - used < LONGEST_S
        channel.close()
        os.close(unused)
        told += found.registers is not None
        assert found.status is EvaluationStatus.PASSED
        assert found.registers is None or 0 <= found.registers <= 255
    assert 0 < told < count, "mutations are seen, and refused"


def request(file: Path, **params: Any) -> EvaluationRequest:
    case = Case(suite="s", name="c", op="unit_sum", params=params)
    return EvaluationRequest(roots=(STATIC_PROJECT / "kernels",), file=file, op="unit_sum", cases=(case,), stage=Stage.CHECK, seconds=60.0)


def test_a_candidate_is_compiled_in_a_confined_process(tmp_path: Path) -> None:
    """Planted: too few registers for its values, and an attempt to write outside of its scratch folder."""
    outside = tmp_path / "outside"
    launching = (STATIC_PROJECT / "kernels" / "unit_sum" / "in_triton.py").read_text().partition("@kernel")[0]
    file = tmp_path / "mine.py"
    file.write_text(f"""{launching}
try:
    open({str(outside)!r}, "w")
except OSError:
    pass

@kernel("unit_sum", "mine", version=1, role="fused", language="triton")
def mine(x):
    launch(x, num_warps=1, maxnreg=24)
""")
    evaluation = Evaluation(status=EvaluationStatus.PASSED, op="unit_sum", stage=Stage.CHECK)
    with CompiledCode(request(file, rows=64, columns=4096), CPU) as compiled:
        found = compiled.added_to(evaluation, wait_s=120.0)
    assert 0 < (found.registers or 0) <= 24, found
    assert (found.spills or 0) > 0
    assert found.remarks[0].startswith("registers, spills and shared memory are those of code for sm_90")
    assert "bytes are spilled a thread" in found.remarks[1]
    assert not outside.exists() or not landlock_abi()


def test_a_process_waits_for_the_next_candidate_and_no_two_candidates_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Process:
        alive, closed = True, False

        def __init__(self, *made_for: Any) -> None:
            self.made_for = made_for
            made.append(self)

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(compiled_code, "CompilerProcess", Process)
    compilers = compiled_code.Compilers()
    first, second = compilers.take(("a",), "sm_90"), compilers.take(("a",), "sm_90")
    assert made.index(first) == 0
    assert made.index(second) == 1
    other = compilers.take(("b",), "sm_90")
    assert other.made_for == (("b",), "sm_90")
    assert [one.closed for one in made] == [False, False, True, False, False], "of another project: closed, not taken"
    made[4].alive = False
    assert made.index(compilers.take(("b",), "sm_90")) == 5, "one that died is not taken"
    compilers.close()
    assert [one.closed for one in made[4:]] == [True, False, True]


def test_a_torch_kernel_starts_no_process(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import torch\n")
    evaluation = Evaluation(status=EvaluationStatus.PASSED, op="unit_sum", stage=Stage.CHECK)
    with CompiledCode(request(file), CPU) as compiled:
        assert compiled.added_to(evaluation, wait_s=0.0) is evaluation
