"""As `test_foreign_bytes`, for what commands beside `run` find on disk: tables, notes of locks, outcomes of jobs, caches, hub metadata."""

from __future__ import annotations

import math
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fusebench.ci.bisecting import read_outcome
from fusebench.ci.findings import Judged
from fusebench.ci.outcome import JobOutcome, read_outcomes
from fusebench.cli.shared.kernel_listing import ListingFile
from fusebench.device.lock import describe_holder, read_holder, write_note
from fusebench.errors import FusebenchError
from fusebench.fleet.interference import BusyBoards, Interference, interference_file, load_interference
from fusebench.models.building import stored_configuration, weight_files
from fusebench.registry.dispatching.tables import TableRefusedError, read_table
from fusebench.registry.loading.declarations import Listing
from fusebench.schema import Estimate
from fusebench.store.catalogue import files as catalogue
from fusebench.store.model_folder import read_model, write_model
from fusebench.store.record_files import encode_json
from fusebench.store.static_baselines import read_static
from helpers.mutations import refused
from helpers.synthetic_records import model_record

REPOSITORY = Path(__file__).parents[2]
Reader = Callable[[Path], object]


def refusing(read: Callable[[Path], Any]) -> Reader:
    """`read`, which answers None for what is no content."""

    def required(file: Path) -> None:
        if read(file) is None:
            raise FusebenchError("nothing")

    return required


def dispatch_table(folder: Path) -> tuple[Path, Reader]:
    def read(file: Path) -> object:
        try:
            return read_table(file)
        except TableRefusedError as error:
            raise FusebenchError(str(error)) from error

    file = folder / "nvidia_h200.triton-3.6.json"
    shutil.copyfile(REPOSITORY / "kernels" / "norm_scale_shift" / "dispatch" / file.name, file)
    return file, read


def static_baseline(folder: Path) -> tuple[Path, Reader]:
    (stored,) = (REPOSITORY / "results" / "baselines" / "static" / "sm_90").glob("*.parquet")
    return Path(shutil.copy(stored, folder)), read_static


def model(folder: Path) -> tuple[Path, Reader]:
    made = write_model(folder, model_record())
    return made / "model.json", lambda _: read_model(made)


def interference(folder: Path) -> tuple[Path, Reader]:
    file = interference_file(folder, "Toy")
    file.parent.mkdir()
    busy = BusyBoards(busy=2, time=Estimate(1.0, 1.0, math.inf), boards={"cuda:0": 1.0})
    record = Interference(
        version=1, created="2026-01-01T00:00:00+00:00", host=platform.node(), device="cuda", device_name="Toy", boards=("a", "b"),
        cases=("s:a",), sizes=(busy,), between_boards={"cuda:0": 1.0},
    )  # fmt: skip
    file.write_bytes(encode_json(msgspec.to_builtins(record)))
    return file, lambda _: load_interference(folder, "Toy")


def holder(folder: Path) -> tuple[Path, Reader]:
    def read(file: Path) -> Any:
        describe_holder(file)
        return read_holder(file)

    write_note(folder / "note")
    return folder / "note", refusing(read)


def outcome(folder: Path) -> tuple[Path, Reader]:
    judged = [
        Judged(
            kernel="a/b@1", case="s:c", verdict="regression", gating=True, reason="slower", change=1.2, by="gate", reproduce="fusebench run"
        )
    ]
    file = folder / "outcome.json"
    made = JobOutcome(job="nightly", device="Toy", exit_code=1, lines=["slower"], steps=[], judged=judged)
    file.write_bytes(msgspec.json.encode(made))

    def read(_: Path) -> None:
        read_outcomes([folder])
        read_outcome(folder)

    return file, read


def listing(folder: Path) -> tuple[Path, Reader]:
    (folder / "kernels").mkdir()
    kept = ListingFile([folder / "kernels"], folder)
    kept.keep(Listing(ops=[], kernels=[]))
    (file,) = folder.glob("*.json")
    return file, refusing(lambda _: ListingFile([folder / "kernels"], folder).read())


def hub_configuration(folder: Path) -> tuple[Path, Reader]:
    file = folder / "config.json"
    file.write_text('{"_class_name": "FluxTransformer2DModel", "num_layers": 19, "axes_dims_rope": [16, 56, 56], "guidance_embeds": true}')
    return file, lambda _: stored_configuration(folder, "FluxTransformer2DModel")


def hub_index(folder: Path) -> tuple[Path, Reader]:
    file = folder / "diffusion_pytorch_model.safetensors.index.json"
    file.write_text('{"metadata": {"total_size": 8}, "weight_map": {"a.weight": "one.safetensors", "b.weight": "two.safetensors"}}')
    return file, lambda _: weight_files(folder)


def catalogue_part(folder: Path) -> tuple[Path, Reader]:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"case": ["a", "b"], "time_us": [1.5, 2.5]})
    file = folder / "part.parquet"
    pyarrow.parquet.write_table(table.replace_schema_metadata({catalogue.RUNS_KEY: b"one two"}), file)
    return file, lambda _: catalogue.read_table(file.read_bytes(), "part.parquet")


MAKERS = (
    dispatch_table, static_baseline, model, interference, holder, outcome, listing, hub_configuration, hub_index, catalogue_part,
)  # fmt: skip


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_a_reader_answers_whatever_it_finds(tmp_path: Path, make: Callable[[Path], tuple[Path, Reader]], count: int) -> None:
    file, read = make(tmp_path)
    content = file.read_bytes()
    read(file)

    def write_and_read(one: bytes) -> None:
        file.write_bytes(one)
        read(file)

    assert refused(content, write_and_read, count) > count / 20, "the mutations are seen"


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("content", [b"[" * 200_000, b'"\xff"', b'{"a": "\xff\xfe"}', b'{"a":' * 100_000, b"9" * 5000, b""])
def test_deep_and_undecodable_content_is_refused(tmp_path: Path, make: Callable[[Path], tuple[Path, Reader]], content: bytes) -> None:
    file, read = make(tmp_path)
    file.write_bytes(content)
    with pytest.raises(FusebenchError):
        read(file)
