"""Folders that are asked whether they take a new one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from fusebench.errors import UsageError
from fusebench.store.files import require_writable
from fusebench.store.journal import Journal


def test_a_folder_that_can_be_made_is_not_left_behind(tmp_path: Path) -> None:
    require_writable(tmp_path / "results" / "runs")
    assert list(tmp_path.iterdir()) == []


def begin_journal(parent: Path, synthetic: ModuleType) -> None:
    journal = Journal(parent)
    journal.begin(msgspec.structs.replace(synthetic.make_run(cases=("flux_1024",)), cases=[], results=[]))
    journal.close()
    assert len(list(parent.iterdir())) == 1


@pytest.mark.parametrize("work", [lambda parent, _: require_writable(parent), begin_journal], ids=["check", "journal"])
def test_a_folder_that_another_process_takes_away_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synthetic: ModuleType, work: Callable[[Path, ModuleType], None]
) -> None:
    """Both made it for their check, and the other one is done first."""
    make, taken = Path.mkdir, list[Path]()

    def mkdir(path: Path, *arguments: Any, **options: Any) -> None:
        if path.suffix == ".partial" and not taken:
            taken.append(path.parent)
            path.parent.rmdir()
        make(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    work(tmp_path / "runs", synthetic)
    assert taken == [tmp_path / "runs"]


def test_a_folder_with_something_in_it_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    require_writable(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_what_cannot_hold_a_folder_is_named_with_what_to_do(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(UsageError, match=r"nothing can be written there: .*; expected a folder .*; mend it, or take another$") as caught:
        require_writable(tmp_path / place, instead="take another")
    assert str(tmp_path / place) in str(caught.value)
    with pytest.raises(UsageError, match=r"; mend it$"):
        require_writable(tmp_path / place)
    assert (tmp_path / "file").read_text() == "kept"
