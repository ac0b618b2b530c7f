"""The records that a shard is judged by: baselines, calibrations and a named baseline, packed where the command was given.

A worker's host may see neither the store nor the folder of the results, so the records travel with the task.  Every shard is then divided,
confirmed and judged by the same records as the whole.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from ..errors import UsageError

FOLDERS = ("baselines", "calibration", "interference")
"""Folders of the results that a run reads."""
NAMED = "named_baseline"
"""Folder of the run that `--baseline` names, among the packed records."""
MOST_BYTES = 64 * 2**20
"""Each task carries the packed records through the engine. The stored baseline, calibration and evidence of an H200 take 0.7 MB."""
_RECORDS = frozenset({".json", ".parquet"})


def packed_results(results: Path, baseline: Path | None = None) -> bytes:
    """The records in the folder `results`, and the run in the folder `baseline`, as a compressed tar file.

    Raises:
        UsageError: the records take more than `MOST_BYTES`.
    """
    files = {
        f"{name}/{file.relative_to(results / name).as_posix()}": file
        for name in FOLDERS
        for file in sorted((results / name).rglob("*"))
        if _packs(file, results / name)
    }
    if baseline is not None:
        files |= {f"{NAMED}/{file.name}": file for file in sorted(baseline.iterdir()) if _packs(file, baseline)}
    sizes = {name: file.stat().st_size for name, file in files.items()}
    if (size := sum(sizes.values())) > MOST_BYTES:
        raise UsageError(
            f"--on: the baselines and calibrations in {results} take {size / 2**20:.0f} MB, and a shard takes at most "
            f"{MOST_BYTES >> 20} MB; the largest file is {max(sizes, key=sizes.__getitem__)}; give --results with fewer baselines, or name "
            "a smaller --baseline"
        )
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as archive:
        for name, file in files.items():
            archive.add(file, arcname=name)
    return sink.getvalue()


def _packs(file: Path, folder: Path) -> bool:
    """Whether `file` below `folder` is part of a finished record: no view, and not half-written."""
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return file.suffix in _RECORDS and not hidden and file.is_file()


def options_of_results(content: bytes, folder: Path) -> list[str]:
    """Write what `packed_results` gave into `folder`; the options of `fusebench run` that judge by it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(folder, filter="data")
    named = folder / NAMED
    return ["--results", str(folder), *(["--baseline", str(named)] if named.is_dir() else [])]
