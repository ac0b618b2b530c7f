"""CUDA C++ that one process compiled is not compiled by the next, unless anything that the code depends on has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fusebench.registry import cubin_cache, nvrtc

pytest.importorskip("cuda.core.utils")

SOURCE = '#include "factor.cuh"\nextern "C" __global__ void scale(float* x) { x[threadIdx.x] *= FACTOR * N; }\n'
Load = Callable[[Any], Any]


class Bench:
    """A CUDA source, and what each new process gets of it."""

    def __init__(self, folder: Path) -> None:
        self.compiled = 0
        self.file = folder / "kernels" / "scale.cu"
        self.file.parent.mkdir()
        self.file.write_text(SOURCE)
        (folder / "kernels" / "factor.cuh").write_text('#include "../shared/value.cuh"\n#define FACTOR VALUE\n')
        self.value = folder / "shared" / "value.cuh"
        self.value.parent.mkdir()
        self.value.write_text("#define VALUE 2.0f\n")
        self.cache = folder / "cache"

    def __call__(self, n: int = 1, load: Load = lambda made: bytes(made.code), arch: str = "sm_90") -> bytes:
        """The code that a new process loads."""
        source = nvrtc.kernel_source(self.file, "scale", {"N": n})
        cubin_cache._cache.cache_clear()

        def compiled() -> Any:
            self.compiled += 1
            return nvrtc.compile_cubin(source, arch)

        made, loaded = cubin_cache.kept(source.file, nvrtc._options(source, arch), compiled, load)
        assert bytes(made.code) == loaded
        return bytes(loaded)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    found = Bench(tmp_path)
    monkeypatch.setenv("FUSEBENCH_CACHE_DIR", str(found.cache))
    yield found
    cubin_cache._cache.cache_clear()


def test_the_next_process_takes_the_same_code_from_disk(bench: Bench) -> None:
    first = bench()
    assert (bench(), bench.compiled) == (first, 1)
    assert bench(2) != first
    assert bench(arch="sm_100") != first
    assert bench(2) == bench(2)
    assert bench.compiled == 3


def test_no_header_is_taken_from_where_the_user_happens_to_stand(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC takes it for the source's folder, unless the source has a name; the key of the code holds the headers beside the source."""
    first = bench()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "factor.cuh").write_text("#define FACTOR 5.0f\n")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("FUSEBENCH_CACHE_DIR", str(tmp_path / "another_cache"))
    assert (bench(), bench.compiled) == (first, 2)


@pytest.mark.parametrize("change", ["source", "included", "compiler"])
def test_whatever_the_code_depends_on_compiles_it_anew(bench: Bench, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench()
    if change == "source":
        bench.file.write_text(SOURCE.replace("*=", "+="))
    elif change == "included":
        bench.value.write_text("#define VALUE 3.0f\n")
    else:
        monkeypatch.setattr(cubin_cache, "_compiler", lambda: ("libnvrtc.so of another patch level", 1, 1))
    assert (bench() == first) == (change == "compiler")
    assert bench.compiled == 2


@pytest.mark.parametrize("include", ["#include <cstddef_of_the_toolkit>", '# include "header_of_the_toolkit.h"', "#include MACRO"])
def test_a_source_that_includes_what_is_not_beside_it_is_compiled_by_every_process(bench: Bench, include: str) -> None:
    bench.file.write_text(f"#define MACRO <x>\n#if 0\n{include}\n#endif\n{SOURCE}")
    assert bench() == bench()
    assert bench.compiled == 2
    assert not any(one.is_file() and one.stat().st_size > 100 for one in bench.cache.rglob("*"))


def test_an_entry_that_does_not_load_is_compiled_and_written_anew(bench: Bench) -> None:
    first = bench()
    (entry,) = [one for one in bench.cache.rglob("*") if one.is_file() and one.read_bytes() == first]
    entry.write_bytes(first[:100])

    def load(made: Any) -> bytes:
        if len(made.code) < 200:
            raise RuntimeError("CUDA_ERROR_INVALID_IMAGE")
        return bytes(made.code)

    assert (bench(load=load), bench.compiled) == (first, 2)
    assert (bench(load=load), bench.compiled) == (first, 2)


def test_code_that_was_just_compiled_and_does_not_load_is_an_error(bench: Bench) -> None:
    def load(made: Any) -> bytes:
        raise RuntimeError("CUDA_ERROR_NOT_FOUND")

    with pytest.raises(RuntimeError, match="NOT_FOUND"):
        bench(load=load)
    assert bench.compiled == 1


def test_without_a_folder_that_takes_files_every_process_compiles(bench: Bench) -> None:
    bench.cache.write_text("a file, not a folder")
    assert bench() == bench()
    assert bench.compiled == 2


def test_an_older_cuda_core_compiles_in_every_process(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("cuda.core.utils.FileStreamProgramCache")
    assert bench() == bench()
    assert bench.compiled == 2


def test_the_sources_of_this_repository_are_kept() -> None:
    every = sorted((Path(__file__).parents[2] / "kernels").rglob("*.cu"))
    assert every
    assert [file for file in every if not cubin_cache.included(file)[1]] == []
