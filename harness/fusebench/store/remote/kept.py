"""Baselines and calibrations on a store.

A promotion is a new immutable folder `baselines/<device>/<number>_<created>_<id>`, and the one with the highest number counts.  Two
promotions at once get one number, and the later name counts: nothing is replaced, so nothing is locked or lost.  A folder of results
that was copied to the store as it is (`baselines/<device>/run.json`) counts as number 0.

Calibrations and the scatter between runs are small files that are replaced as a whole: `calibration/<device>.*`.
"""

from __future__ import annotations

from pathlib import Path

from ..baselines import STATIC_FOLDER, baseline_folder
from ..files import write_file
from ..run_folder import RUN_FILE, folder_name, read_run
from .files import Store
from .runs import download, upload

BASELINES = "baselines"
CALIBRATION = "calibration"


def baseline_devices(store: Store) -> list[str]:
    """Slugs of the device models that have a baseline on the store."""
    return [name for name in store.names(BASELINES) if name != STATIC_FOLDER]


def fetch_baseline(store: Store, slug: str, results: Path) -> Path | None:
    """Download the baseline of a device model into the folder `results`, and return its folder; None if there is none.

    Raises:
        StoreError, RunRecordError: as `runs.download`.
    """
    source = _newest(store, slug)
    if source is None:
        return None
    target = baseline_folder(results, slug)
    download(store, source, target)
    return target


def publish_baseline(store: Store, slug: str, results: Path) -> str:
    """Upload the baseline of a device model in the folder `results`, and return its path on the store.

    Raises:
        StoreError, RunRecordError: as `runs.publish_run`.
    """
    folder = baseline_folder(results, slug)
    number = max(_numbered(store, slug), default=(0, ""))[0] + 1
    target = f"{BASELINES}/{slug}/{number:04d}_{folder_name(read_run(folder))}"
    upload(store, folder, target, "this baseline")
    return target


def fetch_calibrations(store: Store, results: Path) -> None:
    """Download all calibrations and scatters into the folder `results`."""
    for name in store.names(CALIBRATION):
        content = store.read(f"{CALIBRATION}/{name}")
        if content is not None:
            write_file(results / CALIBRATION / name, content)


def _numbered(store: Store, slug: str) -> list[tuple[int, str]]:
    """Number and name of every promotion that is whole or was begun."""
    names = store.names(f"{BASELINES}/{slug}")
    return [(int(number), name) for name in names if (number := name.partition("_")[0]).isdecimal()]


def _newest(store: Store, slug: str) -> str | None:
    for _, name in sorted(_numbered(store, slug), reverse=True):
        if RUN_FILE in store.names(f"{BASELINES}/{slug}/{name}"):
            return f"{BASELINES}/{slug}/{name}"
    return f"{BASELINES}/{slug}" if RUN_FILE in store.names(f"{BASELINES}/{slug}") else None
