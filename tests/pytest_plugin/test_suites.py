"""`pytest --fusebench-suite`: one test per kernel and case, through pytest-benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.pytest_session import PLAIN, Session

CPU = "--fusebench-device=cpu"


def test_one_test_per_kernel_and_case_with_figures_in_pytest_benchmarks_json(session: Session, project: Path) -> None:
    chosen = [f"--fusebench-{one}" for one in ("suite=scale", "op=scale", "case=even", "case=o*", "kernel=split", "kernel=scale/plain@*")]
    done = session(*chosen, CPU, "--benchmark-json=out.json", "--benchmark-save=first")
    assert done.returncode == 0, done.stdout + done.stderr
    stored = json.loads((project / "out.json").read_text())
    found = {one["fullname"]: one for one in stored["benchmarks"]}
    assert set(found) == {f"scale::scale/{kernel}[{case}]" for kernel in ("split@1", "plain@1") for case in ("even", "odd")}
    plain = found["scale::scale/plain@1[even]"]
    info = plain["extra_info"]
    assert (info["over"], info["timer"], info["cache"], info["shape"]) == ("scale/split@1", "host", "cold", "4096")
    assert plain["stats"]["rounds"] == 2 * 2
    # The rounds are the samples, in seconds; the figures of fusebench are of the same samples, in microseconds.
    assert min(plain["stats"]["data"]) * 1e6 <= info["time_us"] <= max(plain["stats"]["data"]) * 1e6
    assert info["speedup_low"] <= info["speedup"] <= info["speedup_high"]
    assert info["gb_per_s"] == pytest.approx(8 * 4096 / info["time_us"] / 1e3)
    assert 0 < info["sol_low"] <= info["sol"]
    split = found["scale::scale/split@1[even]"]
    assert "speedup" not in split["extra_info"]
    assert stored["machine_info"]["fusebench"]["device"] == info["device"]
    assert plain["group"] == "scale:even"
    for words in ("Name (time in us)", "test", "speedup", "error x split", "scale/plain@1[even]"):
        assert words in done.stdout

    again = session("--fusebench-suite=scale", CPU, "-k", "plain and even", "--benchmark-compare", "--benchmark-columns=median")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "(NOW)" in again.stdout, "pytest-benchmark found the stored times of the same name"
    assert "machine_info is different" not in again.stdout + again.stderr


def test_paired_kernels_are_measured_together(session: Session, project: Path) -> None:
    """A kernel's speedup is of the very samples that the baseline's own test stores: both were in the same rounds."""
    session("--fusebench-suite=scale", "--fusebench-case=even", CPU, "--benchmark-json=out.json")
    found = {one["name"]: one for one in json.loads((project / "out.json").read_text())["benchmarks"]}
    times = {name: one["extra_info"]["time_us"] for name, one in found.items()}
    speedup = found["scale/plain@1[even]"]["extra_info"]["speedup"]
    assert speedup == pytest.approx(times["scale/split@1[even]"] / times["scale/plain@1[even]"])


TRITON = """
import triton
import triton.language as tl

from fusebench import kernel


@triton.jit
def _scale(x, factor, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, factor * tl.load(x + at, at < size), at < size)


@kernel("scale", "interpreted", version=1, role="fused", language="triton")
def interpreted(x, *, factor=2.0):
    _scale[(triton.cdiv(x.shape[0], 64),)](x, factor, x.shape[0], BLOCK=64)
"""


def test_without_a_gpu_a_triton_kernel_is_checked_and_its_timing_skipped(session: Session, project: Path) -> None:
    (project / "kernels" / "scale" / "interpreted.py").write_text(TRITON)
    done = session("--fusebench-suite=scale", "--fusebench-case=even", CPU, "-k", "interpreted or fast")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "its accuracy is right, but it is not timed: a Triton kernel needs a GPU to be timed" in done.stdout
    assert "CUDA C++ needs a GPU" in done.stdout
    assert "2 skipped" in done.stdout
    assert "Benchmark fixture was not used" not in done.stdout + done.stderr

    (project / "kernels" / "scale" / "interpreted.py").write_text(TRITON.replace("factor * tl.load", "tl.load"))
    wrong = session("--fusebench-suite=scale", "--fusebench-case=even", CPU, "-k", "interpreted")
    assert wrong.returncode == 1, wrong.stdout + wrong.stderr
    assert "scale/interpreted@1 is wrong" in wrong.stdout


def test_a_wrong_kernel_fails_and_is_not_timed(session: Session, project: Path) -> None:
    """Planted defect: a factor that is 1 % off."""
    (project / "kernels" / "scale" / "plain.py").write_text(PLAIN.replace("x.mul_(factor)", "x.mul_(factor * 1.01)"))
    done = session("--fusebench-suite=scale", "--fusebench-kernel=scale/plain@1", "--fusebench-case=even", CPU, "--benchmark-json=out.json")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "scale/plain@1 is wrong on scale:even (4096)" in done.stdout
    assert "fusebench check --suite scale --case even --kernel scale/plain@1" in done.stdout
    assert not (project / "out.json").exists() or not json.loads((project / "out.json").read_text())["benchmarks"]


def test_a_kernel_file_that_does_not_load_is_a_failure(session: Session, project: Path) -> None:
    (project / "kernels" / "scale" / "plain.py").write_text("raise RuntimeError('planted')\n")
    done = session("--fusebench-suite=scale", "--fusebench-case=even", CPU, "--benchmark-disable")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "not loaded:" in done.stdout
    assert "planted" in done.stdout


def test_with_benchmarks_disabled_accuracy_alone_is_checked(session: Session) -> None:
    done = session("--fusebench-suite=scale", "--fusebench-kernel=scale/plain@1", CPU, "--benchmark-disable")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert "warning" not in done.stdout
    assert "time us" not in done.stdout


def test_markers_on_collected_tests(session: Session, project: Path) -> None:
    (project / "conftest.py").write_text(
        "import pytest\n"
        "def pytest_collection_modifyitems(items):\n"
        "    for item in items:\n"
        "        if item.name.startswith('scale/plain@1['):\n"
        "            item.add_marker(pytest.mark.speed(min_speedup=1e6, over='split@1'))\n"
        "            item.add_marker(pytest.mark.speed(min_speedup=1e-6))\n"
        "            item.add_marker(pytest.mark.sol(min=1e-6))\n"
        "        if item.name.startswith('scale/split@1[odd'):\n"
        "            item.add_marker(pytest.mark.speed(min_speedup=1, over='nothing@1'))\n"
    )
    done = session("--fusebench-suite=scale", "--fusebench-case=even", CPU, "--fusebench-replicates=4")
    assert "scale/plain@1[even] is slower than speed(min_speedup=1e+06) allows" in done.stdout, done.stdout + done.stderr
    assert "as fast as scale/split@1" in done.stdout
    assert "asked:    at least 1e+06x" in done.stdout
    assert "device:" in done.stdout
    assert "fusebench ncu --op scale --suite scale --case even --kernel scale/plain@1" in done.stdout
    unknown = session("--fusebench-suite=scale", "--fusebench-case=odd", CPU)
    assert "speed(over='nothing@1'): expected one of" in unknown.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fusebench-suite=scal"], "did you mean 'scale'?"),
        (["--fusebench-suite=scale", "--fusebench-kernel=nothing"], "nothing"),
        (["--fusebench-suite=scale", "-n2"], "leave out -n"),
        (["--fusebench-suite=scale", "-p", "no:benchmark"], "pip install 'fusebench[pytest]'"),
        (["--fusebench-suite=scale", "--fusebench-rounds=1"], "at least 2"),
        (["--fusebench-suite=scale", "--fusebench-device=gpu"], "gpu"),
    ],
    ids=["suite", "kernel", "xdist", "no pytest-benchmark", "rounds", "device"],
)
def test_usage_errors_say_what_to_do(session: Session, arguments: list[str], said: str) -> None:
    done = session(CPU, *arguments)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout + done.stderr
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_device_that_another_run_holds_fails_the_tests_and_names_the_holder(session: Session, own_lock_folder: Path) -> None:
    from fusebench.device import device_lock, resolve_device

    with device_lock(resolve_device("cpu")):
        done = session("--fusebench-suite=scale", "--fusebench-kernel=scale/plain@1", CPU, "--fusebench-wait=0")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "is in use by another fusebench run: pid" in done.stdout
    assert "Wait for it with --fusebench-wait SECONDS" in done.stdout
    assert "2 failed" in done.stdout
