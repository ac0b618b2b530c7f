"""Baselines of static evidence: one file per target and toolchain, `results/baselines/static/<target>/<toolchain>.parquet`.

A file holds one row per compiled kernel and case, sorted. Its content does not vary between machines or days. `fusebench static --gate`
shows how two files differ. Files of an older fusebench, `<toolchain>.json`, are read too, and replaced at the next promotion.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..errors import FusebenchError, RunRecordError
from ..evidence.records import EVIDENCE_VERSION, Code, KernelEvidence, StaticReport, StaticStatus, Toolchain
from ..evidence.static_gate import changed_in_place
from .baselines import STATIC_FOLDER
from .files import write_file
from .record_files import read_version
from .tables import decode_table, encode_table

SUFFIXES = (".parquet", ".json")
"""Suffixes of baseline files: the current one, and the one of an older fusebench."""
_VERSION = "fusebench.evidence_version"
_REMEDY = "restore it from git, or promote it anew"


class StaticBaselineError(FusebenchError):
    """A baseline of static evidence that cannot be read, or must not be replaced."""


class _JsonFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file of an older fusebench: each machine code once, named by its launches."""

    target: str
    toolchain: Toolchain
    codes: dict[str, Code]
    results: list[dict[str, Any]]


def static_folder(results: Path, target: str) -> Path:
    """The folder of the baselines of `target`."""
    return results / "baselines" / STATIC_FOLDER / target


def promote_static(report: StaticReport, results: Path, *, force: bool = False) -> Path:
    """Write `report` as the baseline of its target and toolchain, and return the file.

    Raises:
        StaticBaselineError: nothing compiled, or the baseline there is corrupted. Unless `force` is set, also: a kernel failed, a released
            version changed in place, or the baseline there holds cases that the report lacks.
    """
    file, older = _files(results, report.target, report.toolchain)
    compiled = [one for one in report.results if one.status is StaticStatus.COMPILED]
    if not compiled:
        raise StaticBaselineError(f"{file}: nothing compiled for {report.target}; a baseline needs at least one kernel")
    if report.failed and not force:
        raise StaticBaselineError(f"{file}: not replaced, because kernels failed; mend them, or pass --force to keep the others")
    there = [one for one in (file, older) if one.exists()]
    if there and not force:
        stored = {one.key: one for one in read_static(there[0]).results}
        edited = sorted({one.kernel for one in compiled if one.key in stored and changed_in_place(one, stored[one.key])})
        if edited:
            raise StaticBaselineError(
                f"{file}: not replaced, because the machine code of released versions changed in place: {', '.join(edited)}; "
                "make each a new version, or pass --force to release the change under the old one"
            )
        lost = set(stored) - {one.key for one in report.results}
        if lost:
            named = ", ".join(sorted(f"{kernel} on {case}" for case, kernel in lost)[:3])
            raise StaticBaselineError(
                f"{file}: not replaced, because it holds {len(lost)} kernels and cases that this selection lacks ({named}, …); "
                "select the same suites, or pass --force to drop them"
            )
    write_file(file, encode_static(report))
    older.unlink(missing_ok=True)
    return file


def load_static(results: Path, target: str, toolchain: Toolchain) -> tuple[Path, StaticReport] | None:
    """The baseline of the target and toolchain, else the target's baseline of another toolchain (the last by name), else None.

    Raises:
        StaticBaselineError: the baseline cannot be read.
    """
    exact = [file for file in _files(results, target, toolchain) if file.exists()]
    files = exact[:1] or _stored(static_folder(results, target))
    return (files[-1], read_static(files[-1])) if files else None


def codes_of_baseline(results: Path, target: str) -> dict[str, Code]:
    """The target's stored codes by the digest of all that decides them, the compiler among it; empty without a baseline.

    Baselines of an older fusebench hold no such digests.

    Raises:
        StaticBaselineError: a baseline cannot be read.
    """
    launches = (launch for file in _stored(static_folder(results, target)) for one in read_static(file).results for launch in one.launches)
    return {launch.inputs: launch.code for launch in launches if launch.inputs}


def targets_with_baselines(results: Path) -> list[str]:
    """Names of the targets that have a baseline of any toolchain."""
    parent = results / "baselines" / STATIC_FOLDER
    return sorted(folder.name for folder in parent.glob("*") if _stored(folder))


def read_static(file: Path) -> StaticReport:
    """The evidence in a baseline file, in the current form or an older fusebench's.

    Raises:
        StaticBaselineError: missing, garbled, of another version, or not consistent.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise StaticBaselineError(f"{file}: cannot be read: {error.strerror or error}") from error
    try:
        return _from_json(content, file) if file.suffix == ".json" else _from_table(content, file)
    except RunRecordError as error:
        raise StaticBaselineError(f"corrupted: {error}") from error
    except KeyError as error:
        raise StaticBaselineError(f"{file}: corrupted: it names {error} and does not hold it; {_REMEDY}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, RecursionError) as error:
        raise StaticBaselineError(f"{file}: corrupted ({error}); nothing was changed: {_REMEDY}") from error


def encode_static(report: StaticReport) -> bytes:
    """The content of the file of `report`: kernels that compiled, by case and kernel."""
    compiled = sorted((one for one in report.results if one.status is StaticStatus.COMPILED), key=lambda one: one.key)
    metadata = {_VERSION: str(EVIDENCE_VERSION), "target": report.target, "toolchain": msgspec.json.encode(report.toolchain).decode()}
    nvidia = all(launch.code.amd is msgspec.UNSET for one in compiled for launch in one.launches)
    return encode_table(compiled, KernelEvidence, metadata, left_out=("launches.code.amd",) if nvidia else ())


def _files(results: Path, target: str, toolchain: Toolchain) -> tuple[Path, ...]:
    """Path of the baseline of the target and toolchain, and its path in an older fusebench."""
    return tuple(static_folder(results, target) / f"{toolchain.slug}{suffix}" for suffix in SUFFIXES)


def _stored(folder: Path) -> list[Path]:
    """The baselines in the folder of a target, by name; the current form of a baseline sorts after its older form."""
    found = (file for suffix in SUFFIXES for file in folder.glob(f"[!.]*{suffix}"))
    return sorted(found, key=lambda file: (file.stem, file.suffix))


def _require_version(found: int, file: Path) -> None:
    if found > EVIDENCE_VERSION:
        raise StaticBaselineError(f"{file}: version {found} is newer than this fusebench reads ({EVIDENCE_VERSION}); upgrade fusebench")
    if found < EVIDENCE_VERSION:
        raise StaticBaselineError(
            f"{file}: version {found} counts otherwise than this fusebench ({EVIDENCE_VERSION}); promote it anew with --promote --force"
        )


def _from_table(content: bytes, file: Path) -> StaticReport:
    rows, metadata = decode_table(content, KernelEvidence, file, remedy=_REMEDY)
    version = metadata[_VERSION]
    if not version.isdecimal():
        raise StaticBaselineError(f"{file}: corrupted: its {_VERSION} is {version!r}; {_REMEDY}")
    _require_version(int(version), file)
    toolchain = msgspec.json.decode(metadata["toolchain"], type=Toolchain)
    results = msgspec.convert(rows, tuple[KernelEvidence, ...], strict=False)
    return StaticReport(target=metadata["target"], toolchain=toolchain, results=results)


def _from_json(content: bytes, file: Path) -> StaticReport:
    _require_version(read_version(content, "schema_version"), file)
    stored = msgspec.json.decode(content, type=_JsonFile)
    results = tuple(_expanded(entry, stored.codes) for entry in stored.results)
    return StaticReport(target=stored.target, toolchain=stored.toolchain, results=results)


def _expanded(entry: dict[str, Any], codes: dict[str, Code]) -> KernelEvidence:
    launches = [{**launch, "code": msgspec.to_builtins(codes[launch["code"]], str_keys=True)} for launch in entry["launches"]]
    return msgspec.convert({**entry, "launches": launches}, KernelEvidence, strict=False)
