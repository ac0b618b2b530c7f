"""Kernels: identity, role, language and accuracy contract."""

from __future__ import annotations

import fnmatch
import re
from enum import StrEnum

import msgspec


class Role(StrEnum):
    """Role of a kernel in a comparison."""

    SPLIT = "split"
    """The chain of separate launches that models run today."""
    FUSED = "fused"
    """One launch."""
    COMPILED = "compiled"
    """torch.compile of the split chain, the speed that a user gets for free."""
    PEER = "peer"
    """Another library's kernel, used when it is installed."""


class Language(StrEnum):
    """Implementation language; it determines where the kernel can run."""

    TORCH = "torch"
    TRITON = "triton"
    CUDA = "cuda"


CHOICE_MARK = "__"
"""Stands between the name of a kernel and the label of one of its tunable choices."""
_KERNEL_ID = re.compile(r"(?P<op>[a-z0-9_]+)/(?P<name>[a-z0-9_]+)@(?P<version>[1-9][0-9]*)")


class KernelId(msgspec.Struct, frozen=True, order=True):
    """One implementation of an op: printed and parsed as `op/name@version`."""

    op: str
    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.op}/{self.name}@{self.version}"

    @classmethod
    def parse(cls, text: str) -> KernelId:
        """Read `op/name@version`.

        Raises:
            ValueError: the text has another form.
        """
        match = _KERNEL_ID.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not a kernel id; expected op/name@version, for example qknorm_rope/fused_triton@2")
        return cls(match["op"], match["name"], int(match["version"]))

    @property
    def choice(self) -> str:
        """Label of the tunable choice that this is: `double` of `op/name__double@2`; empty for a kernel as declared."""
        return self.name.partition(CHOICE_MARK)[2]

    @property
    def spellings(self) -> tuple[str, str, str]:
        """The names that a kernel answers to, from the fullest: `op/name@2`, `name@2`, `name`."""
        return str(self), f"{self.name}@{self.version}", self.name

    def matches(self, pattern: str) -> bool:
        """Whether the glob `pattern`, or one of several with commas between them, matches this kernel.

        `op/name@2`, `name@*`, `name` and `*cuda*` are all accepted. A choice is matched only by a glob with `__`, such as `name__*`.
        """
        globs = [glob for glob in pattern.split(",") if not self.choice or CHOICE_MARK in glob]
        return any(fnmatch.fnmatchcase(spelling, glob) for glob in globs for spelling in self.spellings)


class Close(msgspec.Struct, frozen=True, tag="close"):
    """Error against float64 no worse than `factor` x the split chain's own."""

    factor: float = 1.5

    def __str__(self) -> str:
        return f"close({self.factor:g}x split)"


class Bitwise(msgspec.Struct, frozen=True, tag="bitwise"):
    """Equal, element for element, to the kernel `to` (an `op/name@version` string)."""

    to: str

    def __str__(self) -> str:
        return f"bitwise({self.to})"


Contract = Close | Bitwise


class KernelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Static facts about a kernel."""

    id: str
    op: str
    name: str
    version: int
    role: Role
    language: Language
    contract: str
    note: str = ""
    file: str = ""
    covers: str = ""
    """The part of the op that the kernel computes; empty for the whole op."""
    requires: tuple[str, ...] = ()
    """Python modules that the kernel needs to run."""
    install: str = ""
    """Package to `pip install` for these modules; empty when the declaration names none."""
