"""One `fusebench model` on disk: a folder `<created>_<id>_model` holding `model.json`, sealed and written once, and `report.md`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from ..schema.models import MODEL_VERSION, ModelRecord
from .files import write_file
from .finding import MODEL_FILE
from .record_files import finite, new_folder, read_command_record
from .run_folder import stamped_name
from .seal import SealState, check_seal, sealed_json


def write_model(parent: Path, record: ModelRecord) -> Path:
    """Write the record as a new folder under `parent`, which is made when absent, and return it.

    Raises:
        RunRecordError: the folder exists already, or cannot be moved into place.
    """
    folder = parent / f"{stamped_name(record.id, record.created)}_model"
    with new_folder(folder, "model record") as making:
        write_file(making / MODEL_FILE, sealed_json(finite(msgspec.to_builtins(record)), {}))
    return folder


def read_model(folder: Path) -> ModelRecord:
    """The record in `folder` (or in a `model.json` given by its path).

    Raises:
        RunRecordError: there is none, it is truncated or garbled, or it is of a newer version.
    """
    file = _file(folder)
    return read_command_record(file, ModelRecord, version="version", newest=MODEL_VERSION, command="model")


def model_folders(parent: Path) -> list[Path]:
    """The folders in `parent` that hold such a record, by name."""
    return sorted(file.parent for file in parent.glob(f"*/{MODEL_FILE}"))


def newest_models(parent: Path) -> Mapping[str, tuple[Path, ModelRecord]]:
    """Folder and record of each model among the records in `parent`: the newest complete one, or the newest where none is complete.
    Tiny configurations are left out.

    Raises:
        RunRecordError: one of the records cannot be read.
    """
    found = [(folder, read_model(folder)) for folder in model_folders(parent)]
    found.sort(key=lambda one: (one[1].complete, one[1].created))
    return {record.model: (folder, record) for folder, record in found if not record.tiny}


def model_seal(folder: Path) -> SealState:
    """What the seal of the record in `folder` says."""
    return check_seal(_file(folder), ())


def _file(folder: Path) -> Path:
    return folder if folder.name == MODEL_FILE and not folder.is_dir() else folder / MODEL_FILE
