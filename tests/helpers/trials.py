"""The trials of `fusebench eval`: one-file kernels made from the tables of tests/hostile.

A table holds only what a kernel does; `Corpus.write` makes the file that an evaluation gets.
"""

from __future__ import annotations

import fnmatch
import shutil
import tomllib
from pathlib import Path

import msgspec

FOLDER = Path(__file__).resolve().parents[1] / "hostile"
CASES = FOLDER / "cases.toml"
KERNELS = FOLDER.parents[1] / "kernels"
COPY_MARK = "COPY_FOR_TRIALS"
"""Lies in the trials' own copy of kernels/: a trial that edits the project looks for it."""
DEEP = 20_000
"""Brackets of the trial that the parser shall die of."""


class Trial(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One candidate."""

    name: str
    op: str
    trick: str
    code: str
    right: bool = False
    """Its answers may be right, at the cost of three float64 computations: passing without a speedup counts as caught."""
    flaky: bool = False
    """Wrong at random; found with high probability only."""
    naive: bool = True
    """Whether a plain judge in one process believes it, which a test holds it to."""
    gpu: bool = False
    dear: bool = False
    """Takes until a limit of time or memory."""
    role: str = "fused"
    language: str = "torch"
    declare: str = ""
    """Further arguments of the declaration."""
    declared_name: str = ""
    """Name in the declaration, where it is not the trial's."""
    pad_bytes: int = 0
    raw: str = ""
    """The whole file, in place of what is made from `code`."""
    cause: str = ""
    """Table that holds it."""

    @property
    def honest(self) -> bool:
        return self.cause == "honest"

    @property
    def names(self) -> tuple[str, str, str]:
        """Texts by which it is selected."""
        return self.name, self.cause, f"{self.cause}/{self.name}"


class Corpus:
    """All trials."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._templates = tomllib.loads((folder / "templates.toml").read_text())
        self.trials: list[Trial] = []
        for file in sorted(folder.glob("*.toml")):
            for table in tomllib.loads(file.read_text()).get("trial", ()):
                self.trials.append(msgspec.convert({**table, "cause": file.stem}, Trial))

    def select(self, globs: list[str] | None = None, *, gpu: bool = False) -> list[Trial]:
        """Trials whose name, cause or `cause/name` matches one of `globs`, in the order of these; those that need a GPU only with `gpu`."""
        usable = [one for one in self.trials if gpu or not one.gpu]
        if not globs:
            return usable
        found = [one for glob in globs for one in usable if any(fnmatch.fnmatch(text, glob) for text in one.names)]
        return list({one.name: one for one in found}.values())

    def text(self, trial: Trial) -> str:
        """The candidate's file."""
        if trial.raw:
            return trial.raw
        op, delivery = self._templates["op"][trial.op], self._templates["delivery"]
        parts = (self._templates["prelude"], op["compute"], delivery["in_place" if op.get("in_place") else "returned"], delivery["common"])
        declared = trial.declared_name or trial.name
        head = f'"{trial.op}", "{declared}", version=1, role="{trial.role}", language="{trial.language}"'
        text = "".join((*parts, trial.code))
        text = text.replace("@KERNEL", f"@kernel({head}{', ' if trial.declare else ''}{trial.declare})")
        for word, value in (
            ("ARGS", op["args"]),
            ("CALL", op["args"]),
            ("OUTPUTS", str(op.get("outputs", 0))),
            ("DEEP", "(" * DEEP + ")" * DEEP),
        ):
            text = text.replace(word, value)
        for word, value in (
            ("OP/NAME", f"{trial.op}/{declared}"),
            ("OP/", f"{trial.op}/"),
            ('"OP"', f'"{trial.op}"'),
            ('"NAME"', f'"{declared}"'),
        ):
            text = text.replace(word, value)
        return f'"""{trial.trick}"""\n{text}' + "# padding\n" * (trial.pad_bytes // 10)

    def write(self, trial: Trial, folder: Path) -> Path:
        """Write the candidate's file into `folder`."""
        file = folder / f"{trial.name}.py"
        file.write_text(self.text(trial), errors="surrogatepass")
        return file


def copy_kernels(folder: Path) -> Path:
    """A copy of kernels/ that a trial may damage."""
    copy = folder / "kernels"
    if not copy.exists():
        shutil.copytree(KERNELS, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / COPY_MARK).touch()
    return copy
