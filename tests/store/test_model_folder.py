"""A model's record on disk: read back as it was written, its seal told, garbled and newer ones refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fusebench.errors import RunRecordError
from fusebench.store.finding import MODEL_FILE
from fusebench.store.model_folder import model_seal, read_model, write_model
from helpers.synthetic_records import model_record

REPOSITORY = Path(__file__).parents[2]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "runs", model_record())
    assert folder.name == "20260727T072547Z_abcd1234_model"
    assert read_model(folder) == read_model(folder / MODEL_FILE) == model_record()
    assert (model_seal(folder).sealed, model_seal(folder).altered) == (True, "")
    with pytest.raises(RunRecordError, match="exists"):
        write_model(tmp_path / "runs", model_record())


def test_equal_latents_are_read_back(tmp_path: Path) -> None:
    """Their PSNR is infinite, which JSON has no number for."""
    record = model_record(psnr_db=math.inf)
    assert read_model(write_model(tmp_path, record)) == record


def test_an_edit_is_told(tmp_path: Path) -> None:
    file = write_model(tmp_path, model_record()) / MODEL_FILE
    file.write_text(file.read_text().replace("improvement", "regression"))
    assert model_seal(file.parent).altered


@pytest.mark.parametrize("garbled", [b"", b"{", b"[]", b'{"version": "one"}', b"\xff\xfe", b"[" * 100_000])
def test_a_garbled_record_is_refused(tmp_path: Path, garbled: bytes) -> None:
    file = write_model(tmp_path, model_record()) / MODEL_FILE
    file.write_bytes(garbled)
    with pytest.raises(RunRecordError, match=MODEL_FILE):
        read_model(file.parent)


def test_a_truncated_record_is_refused(tmp_path: Path) -> None:
    file = write_model(tmp_path, model_record()) / MODEL_FILE
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(RunRecordError, match="not a record that `fusebench model` wrote"):
        read_model(file.parent)


def test_a_newer_record_is_refused(tmp_path: Path) -> None:
    file = write_model(tmp_path, model_record()) / MODEL_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), "version": 99}))
    with pytest.raises(RunRecordError, match="99"):
        read_model(file.parent)


def test_a_folder_without_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunRecordError, match="cannot be read"):
        read_model(tmp_path)


@pytest.mark.parametrize("file", sorted((REPOSITORY / "results" / "models").glob(f"*/{MODEL_FILE}")), ids=lambda file: file.parent.name)
def test_stored_records_fit_their_seals(file: Path) -> None:
    folder = file.parent
    assert (model_seal(folder).sealed, model_seal(folder).altered) == (True, "")
    assert read_model(folder).model == folder.name
