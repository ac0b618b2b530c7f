"""Cases, and the suites that hold them."""

from __future__ import annotations

import fnmatch
from typing import Any

import msgspec


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One named shape of one op, as a suite file gives it.

    `params` are the op's own keys, already validated against its Params type.  `weight` is the number of launches per
    denoise step.  A case with a `variant` (`tp2`: tensor parallelism over two GPUs) replaces other cases of its suite in a step
    that is run differently: it is measured and shown, and left out of the suite's sums.
    """

    suite: str
    name: str
    op: str
    params: dict[str, Any]
    weight: float = 1.0
    source: str = ""
    variant: str = ""

    @property
    def key(self) -> str:
        """`suite:name`, unique within a run."""
        return f"{self.suite}:{self.name}"

    def matches(self, pattern: str) -> bool:
        """Whether the glob `pattern`, or one of several with commas between them, matches this case.

        `flux_1024`, `*_1024` and `qknorm_rope:flux_*` are all accepted.
        """
        return any(fnmatch.fnmatchcase(spelling, glob) for glob in pattern.split(",") for spelling in (self.name, self.key))


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed suite file, with the cases of the suites that it includes."""

    name: str
    description: str
    path: str
    cases: tuple[Case, ...]
    """The suite's own cases, then the cases of each included suite, which keep that suite's name."""
    included: dict[str, str] = {}
    """Name and path of every included suite, directly or through another."""
