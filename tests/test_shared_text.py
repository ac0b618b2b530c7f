"""A text that processes share: it arrives, it outlives the writer, and freeing it anywhere breaks nothing."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fusebench.shared_text import SharedText
from helpers.forked_workers import forking

FREED_DEEP = """
import random
{make}

def fall(texts):
    try:
        fall(texts)
    except RecursionError:
        pass
    if texts:
        texts.pop()

draw = random.Random(0)
for _ in range(300):
    texts = [make() for _ in range(30)]
    draw.shuffle(texts)
    fall(texts)
    kept = [make() for _ in range(60)]
print("usable")
"""
"""Frees texts in the deepest frames that the recursion limit allows, as the collector does inside a client's nested JSON."""


def freed_deep(make: str) -> subprocess.CompletedProcess[str]:
    code = FREED_DEEP.replace("{make}", make)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_text_that_is_freed_at_the_limit_of_recursion_spoils_no_other() -> None:
    found = freed_deep(
        """
from fusebench.shared_text import SharedText

def make():
    text = SharedText(4096)
    text.close()
    return text
"""
    )
    assert (found.stdout, found.returncode) == ("usable\n", 0), found.stderr


def test_an_array_of_multiprocessing_does() -> None:
    """Otherwise the test before proves nothing."""
    found = freed_deep("from multiprocessing import RawArray\nmake = lambda: RawArray('c', 4096)")
    assert found.returncode == 1
    assert "KeyError" in found.stderr.splitlines()[-1]


def test_a_text_is_shared_with_a_process_and_outlives_it() -> None:
    text = SharedText(16)
    process = forking().Process(target=setattr, args=(text, "value", b"scale/good@1"))
    process.start()
    text.close()
    process.join()
    assert text.value == b"scale/good@1"
    text.value = b"x"
    assert text.value == b"x"
    text.value = b""
    assert text.value == b""


def test_a_text_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    text = SharedText(4)
    text.value = b"abc"
    with pytest.raises((ValueError, IndexError)):
        text.value = b"abcd"
    assert text.value == b"abc"
    text.close()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open descriptors are counted by /proc")
def test_no_descriptor_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)  # the file of other systems, too
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        SharedText(4096).close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
