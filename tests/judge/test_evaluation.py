"""Whole evaluations with real processes: what a candidate does to its own process is a result, and nothing else suffers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from fusebench.judge.channel.protocol import CaseOpened, Load, Loaded, OpenCase
from fusebench.judge.failures import CandidateError
from fusebench.judge.patience import Patience
from fusebench.judge.process import KernelProcess
from fusebench.schema.evaluation import EvaluationStatus
from judge.bench import TOY

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory without a name needs Linux")

HEAD = """
import gc, os, sys, time
from fusebench import kernel

@kernel("scale", "mine", version=1, role="fused", language="torch")
def mine(x, *, factor=2.0):
    x.mul_(factor)

@mine.supports
def _(params):
    {body}
    return True
"""
"""A candidate whose `supports` does `body`: one question, without tensors, reaches code of the candidate."""


@pytest.fixture(scope="module")
def processes() -> Iterator[list[KernelProcess]]:
    """Processes that import torch at the same time, one per attack."""
    made = [KernelProcess(roots=(str(TOY),), device="cpu", confined=True, timed=False) for _ in range(2)]
    yield made
    for process in made:
        process.close()


def ask(process: KernelProcess, body: str, *, patience_s: float = 60.0) -> CaseOpened:
    source = HEAD.format(body=body.replace("\n", "\n    ")).encode()
    far = time.monotonic() + 60.0
    process.ask(Load(token="", op="scale", file="/nowhere/candidate.py", source=source), Loaded, doing="its import", patience=Patience(far))
    return opened(process, patience_s)


def opened(process: KernelProcess, patience_s: float = 60.0) -> CaseOpened:
    question = OpenCase(token="", params={"size": 8})
    return process.ask(question, CaseOpened, doing="supports()", patience=Patience(time.monotonic() + patience_s))[0]


REACHES = """
import ctypes
found = []
for one in gc.get_objects():
    hidden = ("accuracy.comparison", "accuracy.shared_draws", "judge.judg", "judge.evaluating", "judge.loaded_candidate")
    if str(type(one).__module__).startswith(tuple(f"fusebench.{name}" for name in hidden)):
        found.append(type(one).__name__)
try:
    found.append(open(f"/proc/{os.getppid()}/environ").read()[:20])
except OSError:
    pass
try:
    found.append(os.listdir(os.path.expanduser("~root")))
except OSError:
    pass
if params.size != 8 or found:
    return f"reached {found}"
if os.environ.get("ENDS"):
    from fusebench.judge.channel.protocol import CaseOpened, Channel
    Channel(0, int(os.environ["ENDS"])).send(CaseOpened(token="0" * 32, declined=None))
    os._exit(0)
os.environ["ENDS"] = sys.argv[2]
"""
"""First question: look for references.  Second question: forge an answer and go."""


def test_no_reference_is_in_reach_and_a_forged_answer_is_none(processes: list[KernelProcess]) -> None:
    process = processes[0]
    assert (ask(process, REACHES).declined or "") == ""
    assert any(measure.active for measure in process.isolation)
    with pytest.raises(CandidateError, match="does not repeat the request's token") as caught:
        opened(process)
    assert caught.value.status is EvaluationStatus.HACKED
    assert not process.alive


LOOPS = """
if os.environ.get("LOOP"):
    while True:
        pass
os.environ["LOOP"] = "1"
print("noise")
try:
    open("../beside", "w").close()
except OSError:
    print("kept inside")
"""
"""First question: try to leave the scratch folder.  Second question: never answer."""


def test_files_stay_in_the_scratch_folder_and_an_endless_loop_is_killed(processes: list[KernelProcess]) -> None:
    process = processes[1]
    process.until_ready()
    assert ask(process, LOOPS).declined is None
    with pytest.raises(CandidateError) as caught:
        opened(process, 0.2)
    assert caught.value.status is EvaluationStatus.UNDECIDED, "the budget was too small to call it hung"
    assert not process.alive
    assert "noise" in process.output_tail()
    files = next(measure for measure in process.isolation if measure.name == "landlock_files")
    assert ("kept inside" in process.output_tail()) == files.active
