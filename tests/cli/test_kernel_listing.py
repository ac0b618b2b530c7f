"""The kept listing of kernels: it saves the import of kernels, and it never answers for files that have changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusebench.cli.shared import kernel_listing, selection
from fusebench.errors import UnknownNameError
from fusebench.registry import Declarations
from fusebench.registry.loading.declarations import Listing
from fusebench.registry.loading.messages import Answer, AskKernels, Question
from fusebench.registry.loading.process import LoaderProcess

pytestmark = pytest.mark.usefixtures("forked_workers")
Run = Callable[..., Any]

KERNEL = """
from fusebench import kernel

@kernel("scale", "{name}", version=1, role="fused", language="cuda")
def {name}(x, *, factor=2.0):
    x.mul_(factor)
"""


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    """The loads of all kernels by loader processes."""
    done: list[Question] = []

    def counted(process: LoaderProcess, question: Question) -> Answer:
        done.extend([question] if isinstance(question, AskKernels) else [])
        return ask(process, question)

    ask = LoaderProcess.ask
    monkeypatch.setattr(LoaderProcess, "ask", counted)
    return done


def ids(fusebench: Run, *options: str) -> list[str]:
    return [kernel["id"] for kernel in json.loads(fusebench("list", "kernels", "--json", *options).stdout)]


def add(project: Path, name: str) -> Path:
    file = project / "kernels" / "scale" / f"{name}.py"
    file.write_text(KERNEL.format(name=name))
    return file


@pytest.mark.parametrize(
    "command", [[], ["kernels"], ["kernels", "--suite", "scale"], ["kernels", "--suite", "models/toy", "--kernel", "fast"]]
)
def test_a_kept_listing_gives_the_same_answer_as_the_loader(
    fusebench: Run, toy_project: Path, loads: list[Question], command: list[str]
) -> None:
    first = fusebench("list", *command, "--json", "--device", "cpu")
    second = fusebench("list", *command, "--json", "--device", "cpu")
    assert len(loads) == 1
    assert first.exit_code == second.exit_code == 0
    assert first.stdout == second.stdout
    assert fusebench("list", "kernels", "--suite", "scale").stdout.count("no: size 4097") == 1
    assert len(loads) == 1, "one load answers for every suite"


def test_a_case_that_the_kept_listing_lacks_is_put_to_the_kernels(fusebench: Run, toy_project: Path, loads: list[Question]) -> None:
    """The op's facts of the case are asked first, in a process without kernels: none there declines anything."""
    fusebench("list", "kernels", "--suite", "scale")
    suite = toy_project / "mine.toml"
    suite.write_text((toy_project / "suites" / "scale.toml").read_text().replace("4097", "4099"))
    for _ in range(2):
        assert fusebench("list", "kernels", "--suite", str(suite)).stdout.count("no: size 4099") == 1
    assert len(loads) == 2, "what the second command learned is kept, too"


def test_every_change_of_the_files_is_seen(fusebench: Run, toy_project: Path, loads: list[Question]) -> None:
    assert ids(fusebench) == ["scale/fast@2", "scale/split@1"]
    file = add(toy_project, "more")
    assert ids(fusebench) == ["scale/fast@2", "scale/more@1", "scale/split@1"]
    file.write_text(KERNEL.format(name="mine"))  # of the same length, and in the same instant
    assert ids(fusebench) == ["scale/fast@2", "scale/mine@1", "scale/split@1"]
    file.rename(file.with_name("other.py"))
    assert ids(fusebench) == ["scale/fast@2", "scale/mine@1", "scale/split@1"]
    file.with_name("other.py").unlink()
    assert ids(fusebench) == ["scale/fast@2", "scale/split@1"]
    assert len(loads) == 5


def test_a_new_root_is_seen(fusebench: Run, toy_project: Path) -> None:
    assert len(ids(fusebench)) == 2
    other = toy_project / "elsewhere" / "scale"
    other.mkdir(parents=True)
    (other / "extra.py").write_text(KERNEL.format(name="extra"))
    both = ["--kernels", "kernels", "--kernels", "elsewhere"]
    assert "scale/extra@1" in ids(fusebench, *both)
    assert len(ids(fusebench)) == 2


def test_modules_that_links_bring_among_the_installed_ones_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    for file in (site / "installed.py", elsewhere / "module.py", elsewhere / "package" / "part.py"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (site / "module.py").symlink_to(elsewhere / "module.py")
    (site / "package").symlink_to(elsewhere / "package")
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    monkeypatch.setattr(kernel_listing.sysconfig, "get_paths", lambda: dict.fromkeys(names, str(site)))
    linked = {str(site / "module.py"), str(site / "package" / "part.py")}
    assert kernel_listing._outside([], {str(site / "installed.py"), *linked}) == linked


def test_a_module_outside_of_the_folders_is_seen(
    fusebench: Run, toy_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: list[Question]
) -> None:
    """A kernel file that imports a person's own package, which changes."""
    (tmp_path / "lib").mkdir()
    module = tmp_path / "lib" / "listed_names.py"
    module.write_text("NAME = 'one'\n")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    file = add(toy_project, "more")
    file.write_text("from listed_names import NAME\n" + file.read_text().replace('"more"', "NAME"))
    selection.resolve_selection(suite=["scale"])
    assert "scale/one@1" in ids(fusebench), "as loaded for the selection; this adds which modules are missing"
    assert len(loads) == 1
    module.write_text("NAME = 'another'\n")
    assert "scale/another@1" in ids(fusebench)


def test_an_environment_variable_that_a_kernel_file_names_is_seen(
    fusebench: Run, toy_project: Path, monkeypatch: pytest.MonkeyPatch, loads: list[Question]
) -> None:
    file = add(toy_project, "more")
    file.write_text("import os\n" + file.read_text().replace('"more"', 'os.environ.get("MY_KERNEL", "more")'))
    assert "scale/more@1" in ids(fusebench)
    monkeypatch.setenv("MY_OTHER", "1")
    assert "scale/more@1" in ids(fusebench)
    assert len(loads) == 1
    monkeypatch.setenv("MY_KERNEL", "chosen")
    assert "scale/chosen@1" in ids(fusebench)


def test_a_package_that_is_installed_later_is_seen(
    fusebench: Run, toy_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(str(packages))
    file = toy_project / "kernels" / "scale" / "fast.py"
    file.write_text(file.read_text().replace('note="four at a time"', 'requires=("listed_peer",)'))

    def absent() -> list[str]:
        return list(json.loads(fusebench("list", "kernels", "--json").stdout)[0]["not_installed"])

    assert absent() == ["listed_peer"]
    (packages / "listed_peer.py").write_text("")
    assert absent() == []


def test_a_load_with_problems_is_never_kept(fusebench: Run, toy_project: Path, own_listings: Path, loads: list[Question]) -> None:
    (toy_project / "kernels" / "scale" / "broken.py").write_text("raise ValueError('planted')\n")
    for _ in range(2):
        assert "planted" in fusebench("list", "kernels", "--json").stderr
    assert len(loads) == 2
    assert not list(own_listings.glob("*"))


def test_a_damaged_entry_and_an_unwritable_folder_cost_time_alone(
    fusebench: Run, toy_project: Path, own_listings: Path, loads: list[Question]
) -> None:
    expected = ids(fusebench)
    (entry,) = own_listings.glob("*.json")
    entry.write_bytes(entry.read_bytes()[:-9])
    assert ids(fusebench) == expected
    entry.write_text('{"files": 3}')
    assert ids(fusebench) == expected
    entry.unlink()
    own_listings.rmdir()
    own_listings.write_text("a file where the folder should be")
    assert ids(fusebench) == expected
    assert len(loads) == 4


def declared(root: Path) -> Listing:
    found = Declarations([root])
    found.load_kernels()
    listing = found.listing
    assert listing is not None
    return listing


def test_a_file_that_changes_during_the_load_is_not_kept(toy_project: Path, own_listings: Path) -> None:
    root = toy_project / "kernels"
    entry = kernel_listing.listing_file([root])
    listing = declared(root)
    add(toy_project, "late")
    entry.keep(listing)
    assert not own_listings.exists()


def test_only_the_newest_entries_stay(toy_project: Path, own_listings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = toy_project / "kernels"
    listing = declared(root)
    monkeypatch.setattr(kernel_listing, "MOST_ENTRIES", 2)
    for value in "abc":
        monkeypatch.setenv("TRITON_PLANTED", value)
        kernel_listing.listing_file([root]).keep(listing)
    assert len(list(own_listings.glob("*"))) == 2
    assert kernel_listing.listing_file([root]).read() == listing


def test_a_folder_of_too_many_files_is_loaded_every_time(toy_project: Path, own_listings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_listing, "MOST_FILES", 2)
    entry = kernel_listing.listing_file([toy_project / "kernels"])
    entry.keep(Listing(ops=[], kernels=[]))
    assert entry.read() is None
    assert not own_listings.exists()


def test_a_kernel_that_no_file_declares_is_refused_by_the_kept_listing(toy_project: Path, loads: list[Question]) -> None:
    for _ in range(2):
        with pytest.raises(UnknownNameError, match=r"unknown kernel 'nope@9'; known: fast@2, split@1\."):
            selection.resolve_selection(suite=["scale"], kernel="nope@9")
    assert len(loads) == 1
    add(toy_project, "nope")
    with pytest.raises(UnknownNameError, match="'nope@9'; did you mean 'nope@1'"):
        selection.resolve_selection(suite=["scale"], kernel="nope@9")
    assert selection.resolve_selection(suite=["scale"], kernel="nope").kernel == "nope"
