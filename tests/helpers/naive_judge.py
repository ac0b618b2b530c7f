"""A judge as many harnesses have it: kernel, reference, clock and verdict in one process.

It shows that a trial of tests/hostile is a trap at all: a hostile kernel that this judge does not believe proves nothing
about a better one.
Each judgement runs in a fork: `python -m helpers.naive_judge [GLOB ...]`, from tests/, prints a line for each trial.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import msgspec
import torch

from fusebench.accuracy.memory import place
from fusebench.registry import load_collection

from .trials import CASES, Corpus, copy_kernels


def judge_here(name: str, folder: Path) -> dict[str, object]:
    """Whether each case's one checked call was close, and the seconds of a call."""
    corpus = Corpus()
    trial = next(one for one in corpus.trials if one.name == name)
    root = copy_kernels(folder)
    corpus.write(trial, root / trial.op)
    collection = load_collection([root], only=[trial.op], entry_points=False, operators=False)
    if collection.problems:
        return {"passed": False, "why": str(collection.problems[0])}
    kernel, op = collection.kernel(f"{trial.op}/{trial.declared_name or trial.name}@1"), collection.op(trial.op)
    device = torch.device("cuda" if trial.gpu else "cpu")
    calls = []
    for case in tomllib.loads(CASES.read_text())["case"]:
        if case["op"] != trial.op:
            continue
        params = msgspec.convert(case["params"], op.Params)
        if kernel.reason_unsupported(params) is not None:
            continue
        generator = torch.Generator(device).manual_seed(0)
        buffers = op.buffers(params, device=device, generator=generator)
        arguments = op.arguments(params, buffers)
        expected = op.reference(params, arguments)
        checked = op.arguments(params, place(buffers, device=device).buffers)
        returned = kernel(**checked)
        outputs = [checked[one] for one in op.outputs_of(params)] if op.in_place else returned
        due = [expected[one] for one in op.outputs_of(params)]
        for output, reference in zip([outputs] if isinstance(outputs, torch.Tensor) else outputs, due, strict=True):
            if not torch.allclose(output, reference.to(output.dtype), rtol=5e-2, atol=5e-2):
                return {"passed": False, "why": f"{case['name']}: far from the reference"}
        calls.append(arguments)
    gc.disable()
    with torch.no_grad():
        began = time.perf_counter()
        for arguments in calls:
            positional = [arguments[one] for one in op.Arguments.tensors]
            options = {one: arguments[one] for one in op.Arguments.options}
            for _ in range(20):
                kernel(*positional, **options)
        seconds = (time.perf_counter() - began) / 20
    gc.enable()
    return {"passed": True, "seconds": seconds}


def judge(name: str, folder: Path, seconds: float = 20.0) -> dict[str, object]:
    """The last document that a fork of this process prints: its own, or what the trial forged."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(writing, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.closerange(3, 4096)  # a trial may allow itself few files, and a test's process holds many
        sys.stdout = os.fdopen(1, "w", closefd=False)  # a test's is pytest's own, and what a trial prints would miss the pipe
        os.setsid()
        signal.alarm(int(seconds))
        tempfile.tempdir = str(folder)  # what a trial leaves there is gone before it is judged again
        try:
            answer = judge_here(name, folder)
        except BaseException as error:  # noqa: BLE001 - a trial may raise anything, and this child must not return
            answer = {"passed": False, "why": f"{type(error).__name__}: {error}"}
        os.write(1, f"\n{json.dumps(answer)}\n".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        text = stream.read().decode(errors="replace")
    os.waitpid(child, 0)
    for file in folder.glob(f"kernels/*/{name}.py"):
        file.unlink()
    documents = [line for line in text.splitlines() if line.startswith("{")]
    return json.loads(documents[-1]) if documents else {"passed": False, "why": "no document"}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for trial in Corpus().select(sys.argv[1:]):
            print(f"{trial.cause}/{trial.name}: {json.dumps(judge(trial.name, Path(scratch)))}", flush=True)
