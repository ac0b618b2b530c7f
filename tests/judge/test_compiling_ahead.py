"""Helpers that compile ahead for a candidate: they take work off the judged process, decide nothing, and share no more than a cache."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from fusebench.device import nvml
from fusebench.device.select import Device
from fusebench.judge import candidate_group
from fusebench.judge.candidate import candidate_main
from fusebench.judge.candidate_group import helpers_for
from fusebench.judge.channel.protocol import CaseOpened, EvaluateTask, Load, Loaded, OpenCase
from fusebench.judge.compiling_ahead import CompilingAhead
from fusebench.judge.evaluating import Evaluating
from fusebench.judge.failures import CandidateError
from fusebench.judge.judge import Judge
from fusebench.registry import Kernel
from fusebench.schema import Case, Close, KernelId, Language, Role
from fusebench.schema.evaluation import EvaluationStatus, IsolationMeasure, Stage
from judge.bench import CPU, TOY, SameProcess, toy

GIB = 2**30
H200 = Device(kind="cuda", name="NVIDIA H200", uuid="GPU-1", memory_bytes=140 * GIB)
LOAD = Load(token="", op="scale")
CONFINED = (IsolationMeasure(name="seccomp", active=True),)


class Helper(SameProcess):
    """A helper in this process, whose kernel is `function`; `during_load` runs while the candidate is imported."""

    def __init__(self, function: Callable[..., Any], during_load: Callable[[Helper], None] = lambda helper: None) -> None:
        kernel = Kernel(
            function, KernelId("scale", "mine", 1), role=Role.FUSED, language=Language.TORCH, contract=Close(), requires=(), note=""
        )
        super().__init__(kernel, toy().op("scale"))
        self.isolation, self.killed, self.loaded = CONFINED, threading.Event(), False
        self._during_load = during_load

    def until_ready(self) -> None: ...

    def kill(self) -> None:
        self.killed.set()

    def ask(self, request: Any, kind: Any, *, doing: str, deadline: float) -> Any:
        if isinstance(request, Load):
            self.loaded = True
            self._during_load(self)
            return Loaded(token="", kernel="scale/mine@1", language=Language.TORCH), 0.0
        if isinstance(request, OpenCase):
            return CaseOpened(token="", declined="odd" if request.params["size"] == 13 else None, contract=Close()), 0.0
        return super().ask(request, kind, doing=doing, deadline=deadline)


def ahead(helpers: list[Helper], sizes: range, judged: Any = None) -> CompilingAhead:
    collection = toy()
    return CompilingAhead(
        helpers,  # type: ignore[arg-type]
        LOAD,
        (collection.op("scale").parse_params({"size": size}) for size in sizes),
        op=collection.op("scale"),
        split=collection.kernel("scale/split@1"),
        device=CPU,
        deadline=time.monotonic() + 60,
        confined_like=judged or SimpleNamespace(isolation=CONFINED),
    )


def until_ended(helpers: list[Helper]) -> None:
    assert all(helper.killed.wait(30) for helper in helpers)


def test_each_shape_is_compiled_once_by_some_helper_and_none_compiles_alone() -> None:
    """Planted: a compiler that waits for the other helper, so that a single one would never be done."""
    both, compiled = threading.Barrier(2), []

    def slow(x: torch.Tensor, *, factor: float = 2.0) -> None:
        if len(compiled) < 2:
            compiled.append(x.numel())
            both.wait(30)
        else:
            compiled.append(x.numel())
        x.mul_(factor)

    helpers = [Helper(slow), Helper(slow)]
    with ahead(helpers, range(11, 18)) as work:
        until_ended(helpers)
    assert sorted(compiled) == [11, 12, 14, 15, 16, 17], "13 is declined"
    assert (work.compiled, work.failures) == (6, [])


def test_a_helper_that_fails_ends_alone() -> None:
    def fails(helper: Helper) -> None:
        raise CandidateError(EvaluationStatus.CRASHED, "it exited with code 3")

    tried = threading.Event()

    def works(x: torch.Tensor, *, factor: float = 2.0) -> None:
        tried.wait(30)
        x.mul_(factor)

    def broken(x: torch.Tensor, *, factor: float = 2.0) -> None:
        tried.set()
        raise RuntimeError("does not compile")

    helpers = [Helper(works), Helper(broken), Helper(works, fails)]
    with ahead(helpers, range(8, 12)) as work:
        until_ended(helpers)
    assert work.compiled == 3
    assert set(work.failures) == {"it exited with code 3", "does not compile"}


def test_a_helper_that_is_not_confined_as_the_judged_process_is_given_no_candidate() -> None:
    helper = Helper(lambda x, *, factor=2.0: None)
    judged = SimpleNamespace(isolation=(IsolationMeasure(name="seccomp", active=False, reason="planted"),))
    with ahead([helper], range(8, 9), judged) as work:
        until_ended([helper])
    assert not helper.loaded
    assert "not confined" in work.failures[0]


def test_the_end_of_the_judgement_kills_a_helper_that_hangs() -> None:
    began = threading.Event()

    def hangs(helper: Helper) -> None:
        began.set()
        helper.killed.wait(30)
        raise CandidateError(EvaluationStatus.CRASHED, "killed")

    helper = Helper(lambda x: None, hangs)
    with ahead([helper], range(8, 9)) as work:
        assert began.wait(30)
    assert helper.killed.is_set()
    assert not any(thread.is_alive() for thread in work._threads)
    assert work.failures == [], "that it was killed is no finding"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 3),
        ({"cores": 12}, 2),
        ({"cores": 2}, 0),
        ({"stage": Stage.QUICK}, 0),
        ({"device": Device(kind="cpu", name="CPU", memory_bytes=512 * GIB)}, 0),
        ({"used": 129 * GIB}, 1),
        ({"used": 139 * GIB}, 0),
        ({"used": None}, 0),
        ({"memory": 32 * GIB}, 2),
        ({"memory": 8 * GIB}, 0),
    ],
)
def test_helpers_need_cores_and_memory_and_none_runs_beside_a_clock(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], expected: int
) -> None:
    given = {"cores": 16, "stage": Stage.CHECK, "device": H200, "used": GIB, "memory": 64 * GIB} | changes
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(given["cores"]), raising=False)
    monitor = SimpleNamespace(read=lambda uuid: SimpleNamespace(memory_used_bytes=given["used"]))
    monkeypatch.setattr(nvml, "open_monitor", lambda: monitor)
    assert helpers_for(given["device"], given["stage"], given["memory"]) == expected


def test_helpers_get_shapes_of_every_kind_that_check_compares_but_the_first() -> None:
    cases = tuple(Case(suite="s", name=str(size), op="scale", params={"size": size}) for size in (2**12, 2**13, 2**14))
    task = EvaluateTask(
        roots=(str(TOY),), file="", shown="", op="scale", cases=cases, stage=Stage.CHECK, seconds=60.0, memory_bytes=None, device="cpu",
        device_name="CPU",
    )  # fmt: skip
    judge = Judge("cpu", IsolationMeasure(name="hidden_memory", active=True))
    evaluating = Evaluating(
        judge,
        task,
        SimpleNamespace(main=None, helpers=()),
        b"",
        report=lambda step: None,
        deadline=time.monotonic() + 60,  # type: ignore[arg-type]
    )
    todo = [(case, evaluating._op.parse_params(case.params)) for case in cases]
    sizes = [params.size for params in evaluating._shapes_ahead(todo)]
    small = [size for size in sizes if size < 100]
    assert [size for size in sizes if size >= 100] == [2**12, 2**13], "two longer ones, in the order of the cases"
    assert sizes.index(2**12) == 0
    assert len(small) == 2
    assert all(size % 2 for size in small)


def test_what_a_helper_left_in_the_cache_runs_in_no_process_that_is_not_watched_yet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Compiled code of another process of the candidate could replace functions before it is known which are the right ones."""
    seen: list[tuple[str, str]] = []

    class Watching:
        def __init__(self) -> None:
            seen.append(("watched", os.environ.get("TRITON_CACHE_DIR", "")))

    def load_candidate(*given: Any) -> Any:
        seen.append(("loaded", os.environ["TRITON_CACHE_DIR"]))
        return op, kernel

    op, kernel = toy().op("scale"), toy().kernel("scale/split@1")
    monkeypatch.setenv("TRITON_CACHE_DIR", "own")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "own")
    monkeypatch.setattr("fusebench.judge.candidate.tampering.Tampering", Watching)
    monkeypatch.setattr("fusebench.judge.candidate.loading.load_candidate", load_candidate)
    prepare = SimpleNamespace(roots=(str(TOY),), device="cpu", interpret=False, scratch="", cache=str(tmp_path))
    load = SimpleNamespace(token="", op="scale", file="mine.py", source=b"", kernel="")
    candidate_main._Serving(load, prepare, SimpleNamespace(send=lambda message: None), region=None, clock=None)
    assert seen == [("watched", "own"), ("loaded", f"{tmp_path}/triton")]
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == f"{tmp_path}/inductor"


def test_the_processes_of_a_candidate_share_a_folder_that_goes_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    def process(**given: Any) -> SimpleNamespace:
        made.append(given)
        return SimpleNamespace(close=lambda: None, kill=lambda: None)

    monkeypatch.setattr(candidate_group, "KernelProcess", process)
    task = EvaluateTask(
        roots=(str(TOY),), file="", shown="", op="scale", cases=(), stage=Stage.CHECK, seconds=60.0, memory_bytes=64 * GIB, device="cpu",
        device_name="CPU", helpers=2,
    )  # fmt: skip
    group, other = candidate_group.CandidateGroup(task), candidate_group.CandidateGroup(task)
    assert group.cache is not None
    assert [one["cache"] for one in made] == [group.cache] * 3 + [other.cache] * 3
    assert group.cache != other.cache
    assert [one["memory_bytes"] for one in made[:3]] == [64 * GIB, 8 * GIB, 8 * GIB]
    assert all(one["confined"] for one in made)
    assert group.fits(task)
    assert not group.fits(msgspec.structs.replace(task, helpers=3))
    (group.cache / "triton").mkdir()
    group.close()
    other.close()
    assert not group.cache.exists()
