"""Mutated inputs, for the tests of everything that reads what others wrote."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable

from fusebench.errors import FusebenchError

HOSTILE = [
    b"null", b"-1", b"1e999", b"NaN", b"9" * 400, b"1" * 5000,
    b"[" * 3000, b"{\"a\":" * 3000, b'"\\ud800"', b"{}", b"[]", b"true", b'""', b"\x00", b"\xff\xfe", b"'",
    b"2147483648", b"99999999999999999999", b"0.0", b"\r\n", b"]]", b"= [", b"../../x",
]  # fmt: skip
"""Texts that take the place of a value, a key or a separator."""


MOST_S = 1.0
"""Of CPU time, for a reader's answer to one input."""


def mutated(content: bytes, draw: random.Random) -> bytes:
    """`content` with one to four changes: bits, cuts, repetitions, and hostile texts in the place of values."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        place = draw.randrange(len(content) + 1)
        match draw.randrange(6):
            case 0:
                content = content[:place]
            case 1:
                content = content[:place] + bytes([draw.randrange(256)]) + content[place + 1 :]
            case 2:
                content = content[:place] + content[place + draw.randrange(1, 40) :]
            case 3:
                content = content[:place] + content[max(0, place - draw.randrange(1, 200)) :]
            case 4:
                content = content[:place] + draw.choice(HOSTILE) + content[place:]
            case _:
                found = list(re.finditer(rb'"[^"\n]{0,60}"|-?\d+(\.\d+)?|true|false|null', content))
                if found:
                    value = draw.choice(found)
                    content = content[: value.start()] + draw.choice(HOSTILE) + content[value.end() :]
    return content


def refused(content: bytes, read: Callable[[bytes], object], count: int) -> int:
    """How many of `count` mutations of `content` `read` refuses by an error of fusebench; it must answer the others, and each soon."""
    seed = random.SystemRandom().randrange(2**31)
    draw = random.Random(seed)
    found = 0
    for number in range(count):
        one = mutated(content, draw)
        began, used = time.monotonic(), time.thread_time()
        try:
            read(one)
        except FusebenchError:
            found += 1
        except BaseException as error:
            raise AssertionError(f"mutation {number} of seed {seed} ends with {error!r}: {one[:4000]!r}") from error
        assert time.thread_time() - used < MOST_S, f"mutation {number} of seed {seed} took so long"
        assert time.monotonic() - began < 20, f"mutation {number} of seed {seed} waited so long"
    return found
