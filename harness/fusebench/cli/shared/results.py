"""`--results DIR|URL`: the results that a command reads and adds to, in place of the project's own.

Everything below works on folders.  So of a store, the records that a command needs are downloaded into a folder, which is removed with the
command's `Results`, and new ones are written to this machine first and uploaded when they are whole.
"""

from __future__ import annotations

import functools
import shlex
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import UsageError
from .output import remark

if TYPE_CHECKING:
    from ...config import Project
    from ...store.catalogue.files import Files
    from ...store.remote.files import Store

ResultsOption = Annotated[
    str | None,
    typer.Option(
        "--results",
        metavar="DIR|URL",
        help="Runs, baselines, calibrations and catalogue in this folder or store (s3://, gs://, az://, ssh://, file://), in place of the "
        "project's own; stores need the extra `store`.",
        show_default=False,
    ),
]


@dataclass
class Results:
    """The results of a command, which keeps this value to its end.  Without a store, `project` and `own` are the same."""

    project: Project
    """The project, whose `results` hold the downloaded records."""
    own: Project
    """The project, whose `results` take new runs."""
    store: Store | None = None
    _fetched: set[str] = field(default_factory=set)

    @property
    def files(self) -> Files:
        """The files of the results, here or on the store."""
        from ...store.catalogue.files import Folder

        return self.store if self.store is not None else Folder(self.project.results)

    @property
    def name(self) -> str:
        """The folder or the URL."""
        return self.store.url if self.store is not None else str(self.project.results)

    def find(self, text: str, *, records: Sequence[str] | None = None) -> Path:
        """The folder of the run that `text` names, as `store.finding.find_run`; ids and `latest` are those of the store.

        Raises:
            RunRecordError, UnknownNameError, StoreError: no such run, or it cannot be downloaded.
        """
        from ...store.finding import find_run
        from ...store.remote.runs import RUNS, download, named_run
        from ...store.run_folder import RUN_FILE

        path = Path(text).expanduser()
        if self.store is None or path.is_dir() or path.is_absolute() or len(path.parts) > 1:
            return find_run(text, self.project, records=records or (RUN_FILE,))
        name = named_run(self.store, text)
        folder = self.project.results / RUNS / name
        if not folder.exists():
            download(self.store, f"{RUNS}/{name}", folder)
        return folder

    def prepare(self, device_name: str, baseline: str | None) -> str | None:
        """Before a measurement: check that the store takes files, and download the baseline of the device model.

        Returns:
            The folder of `baseline`, a run that the command line names.

        Raises:
            StoreError: the store takes no files, or cannot be read.
        """
        if self.store is not None:
            self.store.require_writable()
        self.fetch_baseline(device_name)
        return str(self.find(baseline)) if baseline is not None else None

    def fetch_baseline(self, device_name: str) -> None:
        """Download the baseline of a device model, if the store has one."""
        from ...naming import device_slug
        from ...store.remote.kept import fetch_baseline

        slug = device_slug(device_name)
        if self.store is not None and slug not in self._fetched:
            fetch_baseline(self.store, slug, self.project.results)
            self._fetched.add(slug)

    def fetch_baselines(self) -> None:
        """Download the baselines of all device models; nothing without a store."""
        from ...store.remote.kept import baseline_devices

        for slug in baseline_devices(self.store) if self.store is not None else ():
            self.fetch_baseline(slug)

    def publish_baseline(self, device_name: str) -> str | None:
        """Upload the baseline of a device model, and return its URL; None without a store.

        Raises:
            StoreError, RunRecordError: it could not be uploaded.
        """
        from ...naming import device_slug
        from ...store.remote.kept import publish_baseline

        if self.store is None:
            return None
        return self.store.where(publish_baseline(self.store, device_slug(device_name), self.project.results))

    def where(self, path: Path) -> str:
        """The name of a path of the results, for messages: its URL on a store."""
        if self.store is None:
            return str(path)
        return self.store.where(path.relative_to(self.project.results).as_posix())

    def publish(self, folder: Path | None) -> None:
        """Upload the run in `folder`, add it to the catalogue, and say where it is.  In a folder of results it is added to the catalogue,
        if there is one.

        Raises:
            StoreError, RunRecordError: it could not be uploaded.  The command that uploads it later is said on stderr.
        """
        from ...store.catalogue.files import add
        from ...store.catalogue.rows import CATALOGUE
        from ...store.remote.runs import publish_run
        from ...store.run_folder import read_run

        if folder is None:
            return
        if self.store is None:
            if (self.project.results / CATALOGUE).is_dir():
                add(self.files, read_run(folder))
            return
        command = shlex.join(["fusebench", "catalogue", "publish", str(folder), "--results", self.store.url])
        try:
            target, run = publish_run(self.store, folder)
            add(self.store, run)
        except BaseException:
            remark("note", f"the run is kept in {folder}; publish it later with: {command}")
            raise
        remark("published", self.store.where(target))


def open_results(text: str | None, project: Project, *, new: bool = False) -> Results:
    """The results at `text`, a folder or a URL; those of the project without one.

    Calibrations of a store are downloaded at once; the project's own stand in for those that it lacks.

    Args:
        new: whether the folder may be absent, because the command makes it.

    Raises:
        StoreError: the store cannot be read.
        UsageError: the URL names no bucket or folder, or there is no such folder.
    """
    import msgspec

    from ...store.remote.files import Store, is_url

    if text is None:
        return Results(project=project, own=project)
    if not is_url(text):
        folder = Path(text).expanduser().absolute()
        if not new and not folder.is_dir():
            raise UsageError(f"--results {text}: no such folder: {folder}; expected a folder of results, or the URL of a store")
        there = msgspec.structs.replace(project, results=folder)
        return Results(project=there, own=there)
    from ...store.remote.kept import CALIBRATION, fetch_calibrations

    store = Store(text, tell=functools.partial(remark, "waiting"))
    mirror = Path(tempfile.mkdtemp(prefix="fusebench-results-"))
    opened = Results(project=msgspec.structs.replace(project, results=mirror), own=project, store=store)
    weakref.finalize(opened, shutil.rmtree, mirror, ignore_errors=True)
    own = project.results / CALIBRATION
    if own.is_dir():
        shutil.copytree(own, mirror / CALIBRATION)
    fetch_calibrations(store, mirror)
    return opened
