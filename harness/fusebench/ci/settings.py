"""`.fusebench/pull_request.toml`: what a pull request measures, on which GPUs, and for how long."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..errors import UsageError
from ..toml_errors import TomlFile

SETTINGS_FILE = Path(".fusebench") / "pull_request.toml"


class PullRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file's keys.

    Raises:
        ValueError: a list is empty or holds something twice, or a number is not positive; it starts with the key's name.
    """

    suites: tuple[str, ...]
    """Suites by name or path."""
    case: str = "*"
    """Glob of the cases."""
    kernel: str = "*"
    """Glob of the kernels."""
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
        for key in ("suites", "gpus", "static_targets"):
            values = getattr(self, key)
            if not values or not all(values):
                raise ValueError(f"{key} holds {'an empty name' if values else 'nothing'}; expected at least one name")
            if len(set(values)) < len(values):
                raise ValueError(f"{key} holds a name twice")
        for key in ("case", "kernel"):
            if not getattr(self, key):
                raise ValueError(f"{key} is empty; expected a glob such as '*'")
        for key in ("budget_minutes", "wait_minutes", "margin"):
            value = getattr(self, key)
            if value is not None and not 0 < value < 10_000:
                raise ValueError(f"{key} is {value:g}; expected a number above 0 (and below 10000)")


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
