"""Launches are recorded as they really are and compiled, the same every time, on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fusebench.errors import UnknownNameError
from fusebench.evidence import collecting, recording, static_worker
from fusebench.evidence.evidence_cache import CacheError, EvidenceCache
from fusebench.evidence.records import KernelEvidence, StaticReport, StaticStatus
from fusebench.evidence.static_process import StaticWorkerError
from fusebench.evidence.targets import TARGETS
from fusebench.registry import nvrtc
from fusebench.schema import ExitCode

ROWS = "unit_sum:rows"


def of(report: StaticReport, kernel: str, case: str = ROWS) -> KernelEvidence:
    (found,) = [one for one in report.results if (one.kernel, one.case) == (f"unit_sum/{kernel}@1", case)]
    return found


def test_every_triton_and_cuda_kernel_of_every_case_is_there(sound: StaticReport) -> None:
    """In the project's own code, that is: its split chain is torch's, and its peer another library's."""
    kernels = ["in_cuda", "unchanged", "spilling", "narrower", "fewer_warps", "longer"]
    assert [(one.case, one.kernel) for one in sound.results] == [
        (case, f"unit_sum/{kernel}@1") for case in (ROWS, "unit_sum:again") for kernel in kernels
    ]
    assert {one.status for one in sound.results} == {StaticStatus.COMPILED}
    assert not sound.failed


def test_triton_evidence_is_that_of_the_real_call(sound: StaticReport) -> None:
    (launch,) = of(sound, "unchanged").launches
    code = launch.code
    assert (launch.grid, launch.threads) == ((4096, 1, 1), 128)
    assert code.instructions.global_loads == {16: 2}, "1024 aligned floats over 128 threads: two loads of 16 bytes"
    assert code.instructions.global_stores == {16: 2}
    assert code.instructions.shuffles >= 5, "a warp's sum takes five exchanges"
    assert code.instructions.barriers >= 1
    assert launch.dynamic_shared >= 4 * 4, "a sum per warp goes through shared memory"
    assert (code.spill_stores, code.stack, code.instructions.local) == (0, 0, 0)
    assert 0 < code.registers <= 255
    assert launch.occupancy.share == 1.0
    assert code.compiler.startswith("triton ")


def test_cuda_evidence_is_that_of_the_real_call(sound: StaticReport) -> None:
    (launch,) = of(sound, "in_cuda").launches
    assert launch.grid == (132, 1, 1), "as many blocks as an H200 has multiprocessors"
    assert launch.threads == 256
    assert launch.code.static_shared == 8 * 4, "what the source declares, without the system's share"
    assert launch.code.instructions.global_loads == {16: 1}
    assert (launch.code.instructions.shuffles, launch.code.instructions.barriers) == (5, 2)
    assert launch.code.compiler.startswith("nvrtc ")


def test_planted_defects_show_in_the_figures(sound: StaticReport, spoiled: StaticReport) -> None:
    spilling = of(spoiled, "spilling").launches[0].code
    assert min(spilling.spill_stores, spilling.spill_loads, spilling.stack, spilling.instructions.local) > 0
    assert spilling.registers <= 24
    narrower = of(spoiled, "narrower").launches[0].code
    assert set(narrower.instructions.global_loads) == {4}, "nothing wider is known to be aligned"
    assert of(spoiled, "fewer_warps").launches[0].occupancy.limited_by == ("blocks",)
    longer = [of(report, "longer").launches[0].code.instructions.total for report in (sound, spoiled)]
    assert longer[1] > longer[0]


def test_the_same_kernels_give_the_same_bytes_wherever_they_lie(sound: StaticReport, spoiled: StaticReport) -> None:
    """Two folders, two processes, two compilations."""
    for kernel in ("unchanged", "in_cuda"):
        assert msgspec.json.encode(of(sound, kernel)) == msgspec.json.encode(of(spoiled, kernel))
    assert of(sound, "longer").launches[0].code.sha256 != of(spoiled, "longer").launches[0].code.sha256


def test_a_second_collection_takes_all_from_the_cache(
    spoiled: StaticReport,
    cache: EvidenceCache,
    spoiled_project: Path,
    monkeypatch: pytest.MonkeyPatch,
    evidence: Callable[..., StaticReport],
) -> None:
    """From another folder with the same content, without a worker; and not once a file of it has changed."""
    root = spoiled_project

    def refuse(request: object) -> None:
        raise AssertionError(f"a worker was asked for {request}")

    monkeypatch.setattr(collecting, "answers", refuse)
    assert msgspec.json.encode(evidence(root, cache=cache)) == msgspec.json.encode(spoiled)
    (root / "kernels" / "unit_sum" / "vector.cuh").write_text("#error\n")
    with pytest.raises(AssertionError, match="a worker was asked"):
        evidence(root, cache=cache)


def test_a_header_in_another_folder_is_an_input_of_the_code(tmp_path: Path) -> None:
    """Kernels' folders share headers one above them: a changed one would else be called identical machine code, from the cache."""
    above, below = tmp_path / "above.cuh", tmp_path / "op" / "below.cuh"
    below.parent.mkdir()
    source = nvrtc.kernel_source(below.with_name("k.cu"), "k", {})
    source.file.write_text('#include "below.cuh"\n')
    below.write_text('#include "../above.cuh"\n#include <cuda_fp16.h>\n')
    above.write_text("int a;")

    def key() -> str:
        recorder = recording.Recorder(TARGETS["sm_90"], {"cuda": "nvrtc 13"})
        recorder.launch_cuda(source, grid=1, block=32)
        return recorder.drain()[0].specialisation.key

    now = key()
    below.with_name("unused.cuh").write_text("int b;")
    assert key() == now
    above.write_text("int c;")
    assert key() != now


def test_code_that_was_counted_otherwise_is_not_taken_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = nvrtc.kernel_source(tmp_path / "k.cu", "k", {})
    source.file.write_text("source")

    def key() -> str:
        recorder = recording.Recorder(TARGETS["sm_90"], {"cuda": "nvrtc 13"})
        recorder.launch_cuda(source, grid=1, block=32)
        return recorder.drain()[0].specialisation.key

    now = key()
    assert key() == now
    monkeypatch.setattr(recording, "EVIDENCE_VERSION", 0)
    assert key() != now


def test_a_corrupted_cache_entry_is_named_and_left_alone(
    spoiled: StaticReport, cache: EvidenceCache, spoiled_project: Path, evidence: Callable[..., StaticReport]
) -> None:
    assert spoiled.results
    assert cache.folder is not None
    entries = sorted(cache.folder.rglob("*.json"))
    kept = {entry: entry.read_bytes() for entry in entries}
    try:
        for entry in entries:
            entry.write_bytes(kept[entry][:-5])
        with pytest.raises(CacheError, match=r"corrupted cache entry.*delete the file, or pass --no-cache"):
            evidence(spoiled_project, cache=cache)
        assert [entry.read_bytes() for entry in entries] == [kept[entry][:-5] for entry in entries]
    finally:
        for entry, content in kept.items():
            entry.write_bytes(content)


def test_kernels_that_fail_are_reported_one_by_one_and_the_rest_goes_on(
    tmp_path: Path, make_project: Callable[..., Path], evidence: Callable[..., StaticReport]
) -> None:
    """Launch code that raises, launch code that launches nothing, device code that is no CUDA, a compiler that dies."""
    root = make_project(tmp_path / "project", {"LONGER": '{"no_such_option": 1}', "NARROWER": '{"num_warps": 3}'})
    folder = root / "kernels" / "unit_sum"
    (folder / "unit_sum.cu").write_text("this is no CUDA\n")
    (folder / "idle.py").write_text(
        "from fusebench import kernel\n\n\n"
        '@kernel("unit_sum", "idle", version=1, role="fused", language="triton")\ndef idle(x):\n    pass\n'
    )
    (folder / "broken.py").write_text("raise RuntimeError('no such luck')\n")
    kept = EvidenceCache(tmp_path / "cache")
    report = evidence(root, cache=kept)
    assert report.failed
    assert (of(report, "in_cuda").status, of(report, "longer").status) == (StaticStatus.COMPILE_ERROR, StaticStatus.LAUNCH_ERROR)
    assert "does not compile for sm_90" in of(report, "in_cuda").reason
    assert "no_such_option" in of(report, "longer").reason
    assert "launched nothing" in of(report, "idle").reason
    assert of(report, "narrower").status in (StaticStatus.COMPILE_ERROR, StaticStatus.LAUNCH_ERROR), "three warps are no power of two"
    assert of(report, "unchanged").status is StaticStatus.COMPILED
    assert ["no such luck" in problem for problem in report.not_loaded] == [True]
    assert kept.folder is not None
    assert not (kept.folder / "launches").exists(), "a case with failures is tried again, not remembered"


@pytest.mark.parametrize(
    "planted",
    [
        ("import os\nos._exit(9)\n", "its import ended the process: exit code 9"),
        pytest.param(("while True: pass\n", "its import showed no sign of life for 8 s"), marks=pytest.mark.exhaustive),
    ],
)
def test_a_file_that_takes_the_worker_down_is_left_out_and_the_others_are_compiled(
    tmp_path: Path, make_project: Callable[..., Path], evidence: Callable[..., StaticReport], monkeypatch: pytest.MonkeyPatch, planted: Any
) -> None:
    monkeypatch.setattr("fusebench.evidence.static_process.SILENCE_S", 8.0)
    code, said = planted
    root = make_project(tmp_path / "project")
    (root / "kernels" / "unit_sum" / "fatal.py").write_text(code)
    report = evidence(root)
    assert [said in problem for problem in report.not_loaded] == [True]
    assert of(report, "unchanged").status is StaticStatus.COMPILED


def test_code_that_takes_the_worker_down_later_is_an_error_with_its_last_words(
    tmp_path: Path, make_project: Callable[..., Path], evidence: Callable[..., StaticReport]
) -> None:
    root = make_project(tmp_path / "project")
    (root / "kernels" / "unit_sum" / "fatal.py").write_text(
        "import os, sys\nfrom fusebench import kernel\n\n\n"
        '@kernel("unit_sum", "fatal", version=1, role="fused", language="triton")\n'
        "def fatal(x):\n    print('farewell', file=sys.stderr, flush=True)\n    os._exit(9)\n"
    )
    with pytest.raises(StaticWorkerError, match=r"ended with exit code 9; it last said: farewell;") as caught:
        evidence(root)
    assert caught.value.exit_code is ExitCode.KERNEL_FAILED


def test_targets_differ_in_grid_and_code(
    sound: StaticReport, tmp_path: Path, make_project: Callable[..., Path], evidence: Callable[..., StaticReport]
) -> None:
    other = evidence(make_project(tmp_path / "project"), "sm_120", kernel="*cuda*")
    (launch,) = of(other, "in_cuda").launches
    assert launch.grid == (170, 1, 1), "as many blocks as an RTX 5090 has multiprocessors"
    assert launch.code.sha256 != of(sound, "in_cuda").launches[0].code.sha256
    assert set(launch.code.instructions.global_loads) == {16}
    assert [one.kernel for one in other.results] == ["unit_sum/in_cuda@1"] * 2


def test_an_unknown_kernel_is_answered_with_the_nearest(
    spoiled: StaticReport, cache: EvidenceCache, spoiled_project: Path, evidence: Callable[..., StaticReport]
) -> None:
    assert spoiled.results
    with pytest.raises(UnknownNameError, match=r"unknown Triton or CUDA C\+\+ kernel 'in_cud'; did you mean 'in_cuda'"):
        evidence(spoiled_project, kernel="in_cud", cache=cache)


def test_a_compiling_process_does_not_read_all_of_triton_to_name_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = pytest.importorskip("triton.runtime.cache")
    monkeypatch.setattr(cache, "triton_key", cache.triton_key)  # it is put back
    static_worker.name_no_compiler()
    part = SimpleNamespace(hash=lambda: "part")
    assert cache.get_cache_key(part, part, part, {}) == "-part-part-part-[]"
