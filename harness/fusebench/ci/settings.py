"""`.fusebench/pull_request.toml`: what a pull request measures, on which GPUs, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from ..errors import UsageError
from ..schema import KernelId
from ..toml_errors import TomlFile

SETTINGS_FILE = Path(".fusebench") / "pull_request.toml"
OneOrMore = str | tuple[str, ...]
"""One value, or several in a list: each selects, as repeated options of the command line do."""


class PullRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file's keys.

    Raises:
        ValueError: a list is empty or holds something twice, or a number is not positive; it starts with the key's name.
    """

    suites: tuple[str, ...]
    """Suites by name or path."""
    op: OneOrMore | None = None
    """Ops of the suites; all of them where it is absent."""
    case: OneOrMore = "*"
    """Globs of the cases."""
    kernel: OneOrMore = "*"
    """Globs of the kernels."""
    gpus: tuple[str, ...]
    """Labels of the runners that have the GPUs: one job each."""
    static_targets: tuple[str, ...] = ("sm_90",)
    """What is compiled for and compared without a GPU."""
    budget_minutes: float = 20.0
    """Of one GPU's job, for all its comparisons together."""
    wait_minutes: float = 30.0
    """For the GPU to become idle."""
    margin: float | None = None
    """Change that does not matter, as `fusebench ab --margin`; its default where it is absent."""

    def __post_init__(self) -> None:
        for key in ("op", "case", "kernel"):
            if getattr(self, key) == "":
                expected = "the name of an op" if key == "op" else "a glob such as '*'"
                raise ValueError(f"{key} is empty; expected {expected}")
        for key in ("suites", "op", "case", "kernel", "gpus", "static_targets"):
            if (values := getattr(self, key)) is None or isinstance(values, str):
                continue
            if not values or not all(values):
                raise ValueError(f"{key} holds {'an empty name' if values else 'nothing'}; expected at least one name")
            if len(set(values)) < len(values):
                raise ValueError(f"{key} holds a name twice")
        for key in ("budget_minutes", "wait_minutes", "margin"):
            value = getattr(self, key)
            if value is not None and not 0 < value < 10_000:
                raise ValueError(f"{key} is {value:g}; expected a number above 0 (and below 10000)")

    @property
    def selection(self) -> list[str]:
        """The SELECTION options of everything that a pull request measures."""
        return self._words(_values(self.op), _values(self.case), _values(self.kernel))

    def selection_of(self, op: str, cases: Sequence[str], kernels: Sequence[str]) -> list[str]:
        """The SELECTION options of one op; empty if nothing of it is selected.

        A glob that matches nothing of this op is left out: a command refuses such a glob.

        Args:
            cases: names of the op's selected cases, `suite:case`.
            kernels: ids of all kernels of the op.
        """
        spelled = [name for key in cases for name in (key, key.partition(":")[2])]
        case_globs = [glob for glob in _values(self.case) if any(fnmatchcase(name, glob) for name in spelled)]
        kernel_globs = [glob for glob in _values(self.kernel) if any(KernelId.parse(one).matches(glob) for one in kernels)]
        return self._words([op], case_globs, kernel_globs) if case_globs and kernel_globs else []

    def _words(self, ops: Sequence[str], cases: Sequence[str], kernels: Sequence[str]) -> list[str]:
        chosen = {"--suite": self.suites, "--op": ops, "--case": cases, "--kernel": kernels}
        return [word for option, values in chosen.items() if "*" not in values for value in values for word in (option, value)]


def _values(given: OneOrMore | None) -> tuple[str, ...]:
    return () if given is None else (given,) if isinstance(given, str) else given


def read_settings(root: Path, file: Path | None = None) -> PullRequest:
    """The settings of the project in `root`, or those in `file`.

    Raises:
        UsageError: the file does not exist.
        SuiteError: it holds an unknown key or a wrong value; the message has file, line and key.
    """
    path = root / SETTINGS_FILE if file is None else file
    if not path.is_file():
        raise UsageError(
            f"{path}: no such file; a pull request needs one that says what to measure, for example "
            'suites = ["qknorm_rope"] and gpus = ["h200"] (docs/ci.md)'
        )
    label = path.relative_to(root) if path.is_relative_to(root) else path
    found = TomlFile.read(path, str(label))
    return found.convert(found.document, PullRequest)
