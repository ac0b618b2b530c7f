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

import msgspec

from .trials import CASES, Corpus, Trial, copy_kernels

OVERTIME_S = 30.0
"""Seconds beyond its budget after which an evaluation is ended: it has failed to keep its own limit."""
OUTPUT_BYTES = 1 << 20


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `fusebench eval` to one trial."""

    name: str
    cause: str
    right: bool
    flaky: bool
    status: str
    """Of the document; `no answer` without a document, `over time` where the command had to be ended."""
    reason: str = ""
    speedup: tuple[float, float, float] | None = None
    """Awarded speedup with its interval."""
    seconds: float = 0.0
    exit_code: int | None = None
    remarks: tuple[str, ...] = ()

    @property
    def answered(self) -> bool:
        return self.status not in ("no answer", "over time")

    @property
    def well(self) -> bool:
        """Whether the judge did what it should."""
        if self.cause == "honest":
            return self.status == "passed"
        if not self.answered:
            return False
        return self.status != "passed" or (self.right and (self.speedup is None or self.speedup[1] <= 1.0))


def evaluate(trial: Trial, corpus: Corpus, *, device: str, stage: str, budget: float, suite: str, kernels: Path) -> Outcome:
    """Run `fusebench eval` on the trial's file, in a session of its own."""
    with tempfile.TemporaryDirectory(prefix="trial-") as scratch:
        file = corpus.write(trial, Path(scratch))
        command = [sys.executable, "-m", "fusebench", "eval", str(file), "--op", trial.op, "--device", device, "--stage", stage, "--json"]
        command += ["--budget", str(budget), "--kernels", str(kernels)] + (["--suite", suite] if suite else [])
        out, err = Path(scratch, "stdout"), Path(scratch, "stderr")
        began = time.monotonic()
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(budget + OVERTIME_S)
        late = process.returncode is None
        if late:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        seconds = time.monotonic() - began
        text = out.open("rb").read(OUTPUT_BYTES).decode(errors="replace")
        said = err.open("rb").read(OUTPUT_BYTES).decode(errors="replace")
    return _outcome(trial, text, said, status="over time" if late else "", exit_code=process.returncode, seconds=seconds)


def _outcome(trial: Trial, text: str, said: str, *, status: str, exit_code: int | None, seconds: float) -> Outcome:
    known = {
        "name": trial.name,
        "cause": trial.cause,
        "right": trial.right,
        "flaky": trial.flaky,
        "seconds": seconds,
        "exit_code": exit_code,
    }
    try:
        document = json.loads(text)  # all of stdout must be one document: a forged one beside it is no answer
    except ValueError:
        last = (said.strip() or text.strip()).splitlines()[-1:] or [""]
        return Outcome(**known, status=status or "no answer", reason=last[0][-200:])
    speedup = document.get("speedup")
    interval = None if speedup is None else tuple(float(speedup[key]) for key in ("value", "low", "high"))
    remarks = tuple(document.get("remarks", ()))
    return Outcome(**known, status=status or document["status"], reason=document["reason"], speedup=interval, remarks=remarks)


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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--stage", default="quick", choices=("check", "quick", "final"))
    parser.add_argument("--suite", default=str(CASES), help="suite of the evaluations; empty for the op's own")
    parser.add_argument("--jobs", type=int, default=1, help="evaluations at a time; 1 on a GPU")
    parser.add_argument("--only", action="append", metavar="GLOB", help="trials by name, cause or cause/name; repeatable")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of one evaluation")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no further trial starts")
    parser.add_argument(
        "--json", type=Path, metavar="OUT", help="file that holds one line of JSON per finished trial; those in it are not repeated"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth trial")
    options = parser.parse_args(arguments)

    corpus, gpu = Corpus(), options.device != "cpu"
    done: dict[str, Outcome] = {}
    if options.json and options.json.exists():
        done = {one.name: one for one in msgspec.json.decode_lines(options.json.read_bytes(), type=list[Outcome])}
    trials = [one for one in corpus.select(options.only, gpu=gpu)[:: options.every] if one.name not in done]
    trials.sort(key=lambda one: one.dear)  # what runs into limits comes last
    ends, lock = time.monotonic() + options.limit, threading.Lock()
    with tempfile.TemporaryDirectory(prefix="trials-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        kernels = copy_kernels(Path(folder))

        def run(trial: Trial) -> None:
            if time.monotonic() > ends:
                return
            one = evaluate(
                trial, corpus, device=options.device, stage=options.stage, budget=options.budget, suite=options.suite, kernels=kernels
            )
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
