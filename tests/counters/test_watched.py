"""A program that is watched: its words, its end, its silence, and that nothing of it is left."""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from fusebench.counters.command import run_watched

LEAVES_A_CHILD = (
    "import subprocess, sys, time, pathlib; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    "pathlib.Path(sys.argv[1]).write_text(str(p.pid)); {then}"
)


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def is_gone(file: Path) -> bool:
    """Whether the process with the number in `file` ends (a signal takes a moment to do its work)."""
    for _ in range(100):
        try:
            if psutil.Process(int(file.read_text())).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def test_both_streams_and_the_exit_code_are_told() -> None:
    ended = run_watched(python("import sys; print('a', flush=True); print('b', file=sys.stderr); sys.exit(3)"), os.environ, silence_s=30)
    assert (ended.code, ended.said) == (3, "a\nb\n")


def test_a_signal_is_a_negative_code() -> None:
    assert run_watched(python("import os; os.kill(os.getpid(), 9)"), os.environ, silence_s=30).code == -9


def test_a_silent_program_is_killed() -> None:
    ended = run_watched(python("import time; print('begun', flush=True); time.sleep(60)"), os.environ, silence_s=0.3)
    assert ended.code is None


def test_a_sign_of_life_keeps_it_alive() -> None:
    signs = itertools.count()
    ended = run_watched(python("import time; time.sleep(0.6)"), os.environ, silence_s=0.25, signs_of_life=lambda: next(signs))
    assert ended.code == 0


@pytest.mark.parametrize("then", ["time.sleep(60)", "pass"])
def test_what_it_started_is_ended_with_it(tmp_path: Path, then: str) -> None:
    file = tmp_path / "pid"
    run_watched(python(LEAVES_A_CHILD.format(then=then), str(file)), os.environ, silence_s=1.0)
    assert is_gone(file)


def test_an_interruption_ends_it_and_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "pid"

    def interrupt() -> None:
        if file.exists() and file.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_watched(python(LEAVES_A_CHILD.format(then="time.sleep(60)"), str(file)), os.environ, silence_s=30, signs_of_life=interrupt)
    assert is_gone(file)
