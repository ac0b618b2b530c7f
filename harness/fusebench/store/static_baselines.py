"""Static evidence that was promoted: one file per target and toolchain, `results/baselines/static/<target>/<toolchain>.json`.

Files are made for reading as differences: sorted, a line for each compiled specialisation and for each kernel and case, and nothing in them
that varies between machines or days.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ..errors import FusebenchError
from ..evidence.records import EVIDENCE_VERSION, Code, KernelEvidence, StaticReport, StaticStatus, Toolchain
from .baselines import STATIC_FOLDER
from .files import write_file

_CODE_DIGITS = 12


class StaticBaselineError(FusebenchError):
    """A baseline of static evidence that cannot be read, or must not be replaced."""


class _File(msgspec.Struct, frozen=True, kw_only=True):
    schema_version: int
    target: str
    toolchain: Toolchain
    codes: dict[str, Code]
    results: list[dict[str, Any]]


class _Probe(msgspec.Struct):
    schema_version: int


def static_folder(results: Path, target: str) -> Path:
    """Where the baselines of `target` lie."""
    return results / "baselines" / STATIC_FOLDER / target


def promote_static(report: StaticReport, results: Path, *, force: bool = False) -> Path:
    """Write `report` as the baseline of its target and toolchain, and return the file.

    Raises:
        StaticBaselineError: a kernel failed, nothing compiled, or the baseline there holds cases that the report lacks, and `force` is
            not set; or the baseline there is corrupted.
    """
    file = static_folder(results, report.target) / f"{report.toolchain.slug}.json"
    compiled = [one for one in report.results if one.status is StaticStatus.COMPILED]
    if not compiled:
        raise StaticBaselineError(f"{file}: nothing compiled for {report.target}; a baseline needs at least one kernel")
    if report.failed and not force:
        raise StaticBaselineError(f"{file}: not replaced, because kernels failed; mend them, or pass --force to keep the others")
    if file.exists() and not force:
        lost = {one.key for one in read_static(file).results} - {one.key for one in report.results}
        if lost:
            named = ", ".join(sorted(f"{kernel} on {case}" for case, kernel in lost)[:3])
            raise StaticBaselineError(
                f"{file}: not replaced, because it holds {len(lost)} kernels and cases that this selection lacks ({named}, …); "
                "select the same suites, or pass --force to drop them"
            )
    write_file(file, encode_static(report))
    return file


def load_static(results: Path, target: str, toolchain: Toolchain) -> tuple[Path, StaticReport] | None:
    """The baseline of the target and toolchain; without it that of another toolchain, the last by name; None where there is none.

    Raises:
        StaticBaselineError: there is one, and it cannot be read.
    """
    folder = static_folder(results, target)
    exact = folder / f"{toolchain.slug}.json"
    files = [exact] if exact.exists() else sorted(folder.glob("[!.]*.json"))
    return (files[-1], read_static(files[-1])) if files else None


def targets_with_baselines(results: Path) -> list[str]:
    """Names of the targets that have a baseline of any toolchain."""
    parent = results / "baselines" / STATIC_FOLDER
    return sorted({file.parent.name for file in parent.glob("*/[!.]*.json")})


def read_static(file: Path) -> StaticReport:
    """The evidence in a baseline file.

    Raises:
        StaticBaselineError: missing, garbled, of a newer version, or not consistent.
    """
    remedy = "restore it from git, or promote it anew"
    try:
        content = file.read_bytes()
        found = msgspec.json.decode(content, type=_Probe).schema_version
        if found > EVIDENCE_VERSION:
            raise StaticBaselineError(f"{file}: version {found} is newer than this fusebench reads ({EVIDENCE_VERSION}); upgrade fusebench")
        if found < EVIDENCE_VERSION:
            raise StaticBaselineError(
                f"{file}: version {found} counts otherwise than this fusebench ({EVIDENCE_VERSION}); promote it anew with --promote --force"
            )
        stored = msgspec.json.decode(content, type=_File)
        results = tuple(_expanded(entry, stored.codes) for entry in stored.results)
    except OSError as error:
        raise StaticBaselineError(f"{file}: cannot be read: {error.strerror or error}") from error
    except KeyError as error:
        raise StaticBaselineError(f"{file}: corrupted: it names code {error} and does not hold it; {remedy}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as error:
        raise StaticBaselineError(f"{file}: corrupted ({error}); nothing was changed: {remedy}") from error
    return StaticReport(target=stored.target, toolchain=stored.toolchain, results=results)


def encode_static(report: StaticReport) -> bytes:
    """The file of `report`: kernels that compiled, by case and kernel, their code by a digest of what is known of it."""
    codes: dict[str, Code] = {}
    results = []
    for one in sorted(report.results, key=lambda one: one.key):
        if one.status is not StaticStatus.COMPILED:
            continue
        entry = msgspec.to_builtins(one, str_keys=True)
        for launch, plain in zip(one.launches, entry["launches"], strict=True):
            plain["code"] = _digest(launch.code)
            codes[plain["code"]] = launch.code
        results.append(entry)
    head = {"schema_version": EVIDENCE_VERSION, "target": report.target, "toolchain": report.toolchain}
    fields = [f"{_json(name)}: {_json(value)}" for name, value in head.items()]
    entries = (f"{_json(name)}: {_json(code)}" for name, code in sorted(codes.items()))
    fields.append('"codes": {\n' + _lines(entries) + "\n}")
    fields.append('"results": [\n' + _lines(map(_json, results)) + "\n]")
    return ("{\n" + ",\n".join(fields) + "\n}\n").encode()


def _lines(entries: Iterable[str]) -> str:
    return ",\n".join(f" {entry}" for entry in entries)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _expanded(entry: dict[str, Any], codes: dict[str, Code]) -> KernelEvidence:
    launches = [{**launch, "code": msgspec.to_builtins(codes[launch["code"]], str_keys=True)} for launch in entry["launches"]]
    return msgspec.convert({**entry, "launches": launches}, KernelEvidence, strict=False)


def _digest(code: Code) -> str:
    return hashlib.sha256(msgspec.json.encode(code)).hexdigest()[:_CODE_DIGITS]
