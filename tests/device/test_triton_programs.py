"""The assembler of Triton's kernels: found, told its version, and the same in every process that runs kernels."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from fusebench.device import triton_programs
from fusebench.device.triton_programs import (
    ASSEMBLER_VARIABLE,
    ASSEMBLER_VARIABLES,
    CACHE_VARIABLE,
    NamedAssemblerError,
    ToolError,
    assembler,
    assembler_environment,
    assembler_version,
    program_version,
    tool,
)
from fusebench.errors import UsageError


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A ptxas of another version."""
    path = tmp_path / "ptxas"
    path.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    path.chmod(0o755)
    return path


def test_the_assembler_is_tritons_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ASSEMBLER_VARIABLE, raising=False)
    path = assembler()
    assert path == tool("ptxas")
    assert assembler_environment()[ASSEMBLER_VARIABLE] == str(path)
    assert program_version(tool("ptxas")).count(".") == 2


def test_an_assembler_that_the_user_names_stays(monkeypatch: pytest.MonkeyPatch, program: Path) -> None:
    monkeypatch.setenv(ASSEMBLER_VARIABLE, str(program))
    assert assembler() == program
    assert program_version(program) == "13.0.88"


def test_without_triton_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ASSEMBLER_VARIABLE, raising=False)
    monkeypatch.setattr(triton_programs.importlib.util, "find_spec", lambda name: None)
    assert assembler() is None
    assert assembler_environment() == {}


def test_inductor_leaves_the_assembler_of_such_a_process_alone(monkeypatch: pytest.MonkeyPatch, program: Path) -> None:
    """The planted defect: a torch that bundles a ptxas, as those for CUDA 13 do, in a process without the variable."""
    from torch._inductor.runtime import compile_tasks

    bundling = program.parent / "torch" / "_inductor" / "runtime" / "compile_tasks.py"
    for folder in (bundling.parents[1], bundling.parents[2]):  # torch 2.11 looks into torch/bin, 2.13 into torch/_inductor/bin
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "ptxas").symlink_to(program)
    monkeypatch.setattr(compile_tasks, "__file__", str(bundling))
    set_path = compile_tasks._set_triton_ptxas_path.__wrapped__
    monkeypatch.delenv(ASSEMBLER_VARIABLE, raising=False)
    own = assembler_environment()
    set_path()
    assert "bin" in os.environ[ASSEMBLER_VARIABLE]
    assert os.environ[ASSEMBLER_VARIABLE] != own[ASSEMBLER_VARIABLE], "what used to happen to the kernels compiled next"
    monkeypatch.setenv(ASSEMBLER_VARIABLE, own[ASSEMBLER_VARIABLE])
    set_path()
    assert os.environ[ASSEMBLER_VARIABLE] == own[ASSEMBLER_VARIABLE]


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """fusebench's own cache, where the user names no folder of Triton's."""
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("FUSEBENCH_CACHE_DIR", str(tmp_path / "own"))
    return tmp_path / "own"


def test_what_one_assembler_made_is_found_by_it_alone(monkeypatch: pytest.MonkeyPatch, program: Path, caches: Path) -> None:
    monkeypatch.delenv(ASSEMBLER_VARIABLE, raising=False)
    own = assembler_environment()[CACHE_VARIABLE]
    assert Path(own).parent == caches / "triton"
    assert assembler_environment()[CACHE_VARIABLE] == own
    monkeypatch.setenv(ASSEMBLER_VARIABLE, str(program))
    named = assembler_environment()[CACHE_VARIABLE]
    program.write_text(program.read_text().replace("13.0.88", "13.1.8"))
    again = assembler_environment()[CACHE_VARIABLE]
    monkeypatch.setenv(ASSEMBLER_VARIABLES["ptxas-blackwell"], str(program))
    assert len({own, named, again, assembler_environment()[CACHE_VARIABLE]}) == 4, "another one, another of that name, another second one"


def test_the_users_folder_of_compiled_kernels_holds_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    folder = assembler_environment()[CACHE_VARIABLE]
    assert Path(folder).parent == tmp_path
    monkeypatch.setenv(CACHE_VARIABLE, folder)
    assert assembler_environment()[CACHE_VARIABLE] == folder, "of a process that such a one starts"


def test_triton_and_inductor_keep_compiled_kernels_in_that_folder(monkeypatch: pytest.MonkeyPatch, caches: Path) -> None:
    from torch._inductor.runtime.cache_dir_utils import triton_cache_dir
    from triton import knobs

    folder = assembler_environment()[CACHE_VARIABLE]
    assert knobs.cache.dir != folder
    monkeypatch.setenv(CACHE_VARIABLE, folder)
    assert knobs.cache.dir == triton_cache_dir(0) == folder


@pytest.mark.parametrize(
    ("text", "said"),
    [("exit 1", "--version failed"), ("echo nothing of the kind", "expected a version such as V12.9.86, found 'nothing of the kind'")],
)
def test_an_assembler_that_tells_no_version_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "ptxas"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    with pytest.raises(ToolError, match=said):
        program_version(path)


def test_what_was_found_and_the_remedy_are_kept_apart_whatever_the_path_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What was found is shown without a remedy of its own: Triton's assembler is not the one that was named."""
    named = tmp_path / "a; b"
    monkeypatch.setenv(ASSEMBLER_VARIABLE, str(named))
    with pytest.raises(NamedAssemblerError) as refused:
        assembler_version("ptxas")
    with pytest.raises(ToolError) as own:
        program_version(named)
    assert isinstance(refused.value, UsageError)
    assert refused.value.cause == f"{ASSEMBLER_VARIABLE} names no assembler that runs: {own.value.cause}"
    assert f"{named} --version failed" in own.value.cause
    assert (refused.value.remedy, own.value.remedy) == (
        "name a ptxas that does, or unset it for Triton's own",
        "install triton again",
    )


def test_such_an_error_says_both_and_survives_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ToolError("it does not run", "install it again")))
    assert (str(error), error.cause, error.remedy) == ("it does not run; install it again", "it does not run", "install it again")
