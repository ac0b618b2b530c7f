"""Judge the judge: give every trial of tests/hostile to `fusebench eval`, and count what it catches and whom it accuses.

    PYTHONPATH=tests python -m helpers.eval_trials --device cuda --jobs 1 --limit 180 --json trials.json

A hostile trial is caught by any status but `passed`, or by `passed` without a speedup where its answers may be right (an honest, slow
computation).  An honest trial is accused by any status but `passed`; `unsupported` and `undecided` are listed apart.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fusebench.cli.shared.evaluation_work import Catalogue, EvaluationOptions, read_candidate, run_evaluation
from fusebench.errors import FusebenchError
from fusebench.schema.evaluation import Stage

from .trials import CASES, COPY_MARK, Corpus, Trial, copy_kernels

if TYPE_CHECKING:
    from fusebench.judge.evaluation import EvaluationRequest, Evaluator

OVERTIME_S = 30.0
"""Seconds beyond its budget after which an evaluation is ended: it has failed to keep its own limit."""
OUTPUT_BYTES = 1 << 20
USAGE_EXIT = 2


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `fusebench eval` to one trial."""

    name: str
    cause: str
    right: bool
    flaky: bool
    status: str
    """Of the document; `refused` for a usage error, `no answer` without a document, `over time` where the command had to be ended."""
    reason: str = ""
    speedup: tuple[float, float, float] | None = None
    """Awarded speedup with its interval."""
    seconds: float = 0.0
    remarks: tuple[str, ...] = ()
    padded: bool = False
    """Whether its file is larger than any candidate may be."""

    @property
    def answered(self) -> bool:
        """Whether the judge said anything of the kernel; a usage error of the command says nothing of it."""
        return self.status not in ("refused", "no answer", "over time", "unfit", "undecided")

    @property
    def well(self) -> bool:
        """Whether the judge did what it should."""
        if self.cause == "honest":
            return self.status == "passed"
        if self.padded and self.status == "refused":
            return "the most that a candidate may have" in self.reason
        if not self.answered:
            return False
        return self.status != "passed" or (self.right and (self.speedup is None or self.speedup[1] <= 1.0))


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How trials are evaluated."""

    device: str = "cpu"
    stage: str = "quick"
    suite: str = str(CASES)
    """Empty for the op's own."""
    budget: float = 60.0


class Judged:
    """Evaluates trials one after another: each by a command of its own, or in an `Evaluator` that stays warm, as the server has it."""

    def __init__(self, corpus: Corpus, folder: Path, settings: Settings, *, warm: bool) -> None:
        self._corpus, self._folder, self._settings = corpus, folder, settings
        self._kernels = copy_kernels(folder)
        self._warm: Evaluator | None = None
        if warm:
            from fusebench.device import resolve_device
            from fusebench.judge.evaluation import Evaluator

            self._warm = Evaluator(resolve_device(settings.device), keep=True)

    def close(self) -> None:
        """End every process."""
        if self._warm is not None:
            self._warm.close()

    def evaluate(self, trial: Trial) -> Outcome:
        """Judge one trial."""
        with tempfile.TemporaryDirectory(prefix="trial-", dir=self._folder) as scratch:
            file = self._corpus.write(trial, Path(scratch))
            kernels = copy_kernels(Path(scratch)) if COPY_MARK in trial.code else self._kernels
            began = time.monotonic()
            if self._warm is None:
                return self._by_command(trial, file, kernels)
            try:
                evaluation = run_evaluation(self._warm, *self._request(trial, file, kernels))
            except FusebenchError as error:
                return _outcome(trial, status="refused", reason=str(error), seconds=time.monotonic() - began)
            return _of_document(trial, msgspec.to_builtins(evaluation), time.monotonic() - began)

    def _request(self, trial: Trial, file: Path, kernels: Path) -> tuple[EvaluationRequest, EvaluationOptions]:
        chosen = self._settings
        suite = [chosen.suite] if chosen.suite else None
        options = EvaluationOptions(op=trial.op, suite=suite, stage=Stage(chosen.stage), kernels=[kernels], seconds=chosen.budget)
        read_candidate(file)
        return Catalogue([kernels]).request(file, options), options

    def _by_command(self, trial: Trial, file: Path, kernels: Path) -> Outcome:
        chosen, scratch = self._settings, file.parent
        command = [sys.executable, "-m", "fusebench", "eval", str(file), "--op", trial.op, "--device", chosen.device, "--json"]
        command += ["--stage", chosen.stage, "--budget", str(chosen.budget), "--kernels", str(kernels)]
        command += ["--suite", chosen.suite] if chosen.suite else []
        out, err = scratch / "stdout", scratch / "stderr"
        began = time.monotonic()
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(chosen.budget + OVERTIME_S)
        seconds = time.monotonic() - began
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return _outcome(trial, status="over time", seconds=seconds)
        try:
            # All of stdout must be one document: a forged one beside it is no answer.
            document = json.loads(out.open("rb").read(OUTPUT_BYTES))
            return _of_document(trial, document, seconds)
        except (ValueError, KeyError):
            said = err.open("rb").read(OUTPUT_BYTES).decode(errors="replace").strip().splitlines()
            status = "refused" if process.returncode == USAGE_EXIT else "no answer"
            return _outcome(trial, status=status, reason=(said or [f"exit code {process.returncode}"])[-1], seconds=seconds)


def _of_document(trial: Trial, document: dict[str, Any], seconds: float) -> Outcome:
    speedup = document["speedup"]
    interval = None if speedup is None else tuple(float(speedup[key]) for key in ("value", "low", "high"))
    return _outcome(
        trial, status=document["status"], reason=document["reason"], seconds=seconds, speedup=interval, remarks=tuple(document["remarks"])
    )


def _outcome(trial: Trial, **found: Any) -> Outcome:
    return Outcome(name=trial.name, cause=trial.cause, right=trial.right, flaky=trial.flaky, padded=trial.pad_bytes > 0, **found)


def report(outcomes: Sequence[Outcome]) -> str:
    """The table: one line per cause, then every trial that went wrong."""
    lines = [f"{'cause':<20} {'trials':>6} {'well':>5}  statuses"]
    for cause in dict.fromkeys(one.cause for one in outcomes):
        of_cause = [one for one in outcomes if one.cause == cause]
        statuses = ", ".join(f"{status} {count}" for status, count in Counter(one.status for one in of_cause).most_common())
        lines.append(f"{cause:<20} {len(of_cause):>6} {sum(one.well for one in of_cause):>5}  {statuses}")
    hostile, honest = ([one for one in outcomes if (one.cause == "honest") is kind] for kind in (False, True))
    caught, passed = (f"{sum(one.well for one in kind)} of {len(kind)}" for kind in (hostile, honest))
    lines.append(f"hostile: {caught} caught; honest: {passed} passed")
    lines += [f"  {'ACCUSED' if one.cause == 'honest' else 'MISSED'} {describe(one)}" for one in outcomes if not one.well]
    return "\n".join(lines)


def describe(one: Outcome) -> str:
    """One line for one trial."""
    speedup = "" if one.speedup is None else " speedup {:.2f} ({:.2f} to {:.2f})".format(*one.speedup)
    return f"{one.cause}/{one.name}: {one.status}{speedup}, {one.seconds:.1f} s  {one.reason[:160]!r}"


def _part(given: str) -> tuple[int, int]:
    part, _, parts = given.partition("/")
    if not 1 <= int(part) <= int(parts):
        raise argparse.ArgumentTypeError(f"found {given}, expected a part and the number of parts, as 1/2")
    return int(part), int(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--stage", default="quick", choices=("check", "quick", "final"))
    parser.add_argument("--suite", default=str(CASES), help="suite of the evaluations; empty for the op's own")
    parser.add_argument("--jobs", type=int, default=1, help="evaluations at a time; 1 on a GPU")
    parser.add_argument("--only", action="append", metavar="GLOB", help="trials by name, cause or cause/name; repeatable")
    parser.add_argument("--list", type=Path, metavar="FILE", help="file of such globs, one per line; trials start in its order")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="I/N", help="part I of N of the trials: one part per GPU")
    parser.add_argument("--warm", action="store_true", help="keep the judge's processes between trials, as the server does")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of one evaluation")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no further trial starts")
    parser.add_argument(
        "--json", type=Path, metavar="OUT", help="file that holds one line of JSON per finished trial; those in it are not repeated"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth trial")
    options = parser.parse_args(arguments)

    corpus, gpu = Corpus(), options.device != "cpu"
    done: dict[str, Outcome] = {}
    if options.json and options.json.exists():
        done = {one.name: one for one in msgspec.json.Decoder(Outcome).decode_lines(options.json.read_bytes())}
    globs = [*(options.only or ()), *(options.list.read_text().split() if options.list else ())]
    part, parts = options.part
    trials = [one for one in corpus.select(globs, gpu=gpu)[:: options.every][part - 1 :: parts] if one.name not in done]
    trials.sort(key=lambda one: one.dear)  # what runs into limits comes last
    ends, lock, idle = time.monotonic() + options.limit, threading.Lock(), queue.SimpleQueue[Judged]()
    settings = Settings(device=options.device, stage=options.stage, suite=options.suite, budget=options.budget)
    with tempfile.TemporaryDirectory(prefix="trials-") as folder, ThreadPoolExecutor(options.jobs) as pool, contextlib.ExitStack() as open_:
        for _ in range(options.jobs):
            judged = Judged(corpus, Path(folder), settings, warm=options.warm)
            open_.callback(judged.close)
            idle.put(judged)

        def run(trial: Trial) -> None:
            if time.monotonic() > ends:
                return
            judged = idle.get()
            try:
                one = judged.evaluate(trial)
            finally:
                idle.put(judged)
            with lock:
                done[one.name] = one
                if options.json:
                    with options.json.open("ab") as file:
                        file.write(msgspec.json.encode(one) + b"\n")
                print(f"{'' if one.well else '>>> '}{describe(one)}", flush=True)

        list(pool.map(run, trials))
    left = [one.name for one in trials if one.name not in done]
    print(report(list(done.values())))
    if left:
        print(f"{len(left)} trials did not start within {options.limit:g} s: {', '.join(left)}")
    return 0 if all(one.well for one in done.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
