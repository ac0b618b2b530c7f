"""Whatever bytes a file holds, its reader answers soon: with a value, or with an error that names the file."""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from fusebench.ci.settings import read_settings
from fusebench.config import find_project
from fusebench.errors import FusebenchError, RunRecordError
from fusebench.registry import load_collection
from fusebench.store.baselines import promote, promotions
from fusebench.store.calibrations import read_calibration
from fusebench.store.history_file import keep_run, read_history_file, write_history
from fusebench.store.journal import Journal, rebuild
from fusebench.store.run_folder import read_run, read_samples, seal_of, write_run
from fusebench.suites import load_suite
from fusebench.verdict.history.snapshots import read_history

REPOSITORY = Path(__file__).parents[2]
TOY_PROJECT = REPOSITORY / "tests" / "toy_project"
HOSTILE = [
    b"null", b"-1", b"1e999", b"NaN", b"9" * 400, b"1" * 5000,
    b"[" * 3000, b"{\"a\":" * 3000, b'"\\ud800"', b"{}", b"[]", b"true", b'""', b"\x00", b"\xff\xfe", b"'",
    b"2147483648", b"99999999999999999999", b"0.0", b"\r\n", b"]]", b"= [", b"../../x",
]  # fmt: skip
"""Texts that take the place of a value, a key or a separator."""
Reader = Callable[[Path], object]


def mutated(content: bytes, draw: random.Random) -> bytes:
    """`content` with one to four changes: bits, cuts, repetitions, and hostile texts in the place of values."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        place = draw.randrange(len(content) + 1)
        match draw.randrange(6):
            case 0:
                content = content[:place]
            case 1:
                content = content[:place] + bytes([draw.randrange(256)]) + content[place + 1 :]
            case 2:
                content = content[:place] + content[place + draw.randrange(1, 40) :]
            case 3:
                content = content[:place] + content[max(0, place - draw.randrange(1, 200)) :]
            case 4:
                content = content[:place] + draw.choice(HOSTILE) + content[place:]
            case _:
                found = list(re.finditer(rb'"[^"\n]{0,60}"|-?\d+(\.\d+)?|true|false|null', content))
                if found:
                    value = draw.choice(found)
                    content = content[: value.start()] + draw.choice(HOSTILE) + content[value.end() :]
    return content


@pytest.fixture
def files(tmp_path: Path, synthetic: ModuleType) -> dict[str, tuple[Path, Reader]]:
    """By name, a file and what reads it."""
    run = synthetic.make_run(cases=("flux_1024",))
    samples = synthetic.make_samples(run)[:60]
    folder = write_run(tmp_path / "runs", run, samples)
    baseline = promote(folder, tmp_path, reason="a test", accepted=["slower"])
    history = tmp_path / "history.parquet"
    write_history(history, [keep_run(run, folder)])
    journal = Journal(tmp_path / "journals")
    journal.begin(msgspec.structs.replace(run, cases=[], results=[]))
    journal.add(run, samples)
    journal.close()
    assert journal.folder is not None
    where = journal.folder
    calibration = tmp_path / "nvidia_h200.json"
    for one in (REPOSITORY / "results" / "calibration").glob("nvidia_h200.*"):
        shutil.copyfile(one, tmp_path / one.name)
    root = tmp_path / "project"
    shutil.copytree(TOY_PROJECT, root, ignore=shutil.ignore_patterns("__pycache__"))
    settings = root / "pull_request.toml"
    settings.write_text('suites = ["smoke"]\ngpus = ["h200"]\n')
    project = find_project(root)
    ops = load_collection([root / "kernels"], kernels=False, entry_points=False).ops
    suite = root / "suites" / "scale.toml"

    def record(_: Path) -> None:
        seal_of(folder)
        read_history([folder])
        read_run(folder)

    def case(_: Path) -> None:
        if not rebuild(where)[0].cases:
            raise RunRecordError("the case is lost, and the record says so")

    return {
        "run.json": (folder / "run.json", record),
        "cases.parquet": (folder / "cases.parquet", record),
        "results.parquet": (folder / "results.parquet", record),
        "kernels.parquet": (folder / "kernels.parquet", record),
        "samples.parquet": (folder / "samples.parquet", lambda _: read_samples(folder)),
        "promotions.json": (baseline / "promotions.json", lambda _: promotions(baseline)),
        "history": (history, read_history_file),
        "journal's head": (where / "head.json", lambda _: rebuild(where)),
        "journal's case": (where / "000000.case", case),
        "calibration": (calibration, read_calibration),
        "pyproject.toml": (root / "pyproject.toml", lambda _: find_project(root)),
        "pull_request.toml": (settings, lambda file: read_settings(root, file)),
        "suite": (suite, lambda file: load_suite(str(file), project, ops)),
    }


NAMES = (
    "run.json", "cases.parquet", "results.parquet", "kernels.parquet", "samples.parquet", "promotions.json", "history", "journal's head",
    "journal's case", "calibration", "pyproject.toml", "pull_request.toml", "suite",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_a_reader_answers_whatever_its_file_holds(files: dict[str, tuple[Path, Reader]], name: str, count: int) -> None:
    file, read = files[name]
    content = file.read_bytes()
    read(file)
    seed = random.SystemRandom().randrange(2**31)
    draw = random.Random(seed)
    refused = 0
    for number in range(count):
        file.write_bytes(mutated(content, draw))
        began = time.monotonic()
        try:
            read(file)
        except FusebenchError:
            refused += 1
        except BaseException as error:
            kept = file.with_name("refused")
            kept.write_bytes(file.read_bytes())
            raise AssertionError(f"{name}: mutation {number} of seed {seed} ends with {error!r}; it is in {kept}") from error
        assert time.monotonic() - began < 20, f"mutation {number} of seed {seed} took so long"
    assert refused > count / 10, "the mutations are seen"


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(
    files: dict[str, tuple[Path, Reader]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fusebench.store.tables.MOST_BYTES", 100)
    for name in ("results.parquet", "samples.parquet", "history"):
        file, read = files[name]
        with pytest.raises(FusebenchError, match="no record has more than 0 MB"):
            read(file)


@pytest.mark.parametrize(("name", "key"), [("run.json", b'"trim": '), ("calibration", b'"trim": '), ("journal's head", b'"trim": ')])
def test_a_number_beyond_every_float_is_refused(files: dict[str, tuple[Path, Reader]], name: str, key: bytes) -> None:
    file, read = files[name]
    content = file.read_bytes()
    assert key in content
    file.write_bytes(content.replace(key, key + b"9" * 400, 1))
    with pytest.raises(FusebenchError):
        read(file)
