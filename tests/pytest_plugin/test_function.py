"""The fixture `gpu_benchmark`, on a CPU: a person's own function in a person's own test file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.pytest_session import Session

HEADER = "import pytest\nimport torch\nfrom functools import partial\n\n"
SLEEP = "import time\ndef slow(x):\n    time.sleep(0.01)\n    return x + 1\ndef fast(x):\n    return x + 1\n\n"


def write(project: Path, text: str) -> None:
    (project / "test_mine.py").write_text(HEADER + text)


def test_three_lines_time_a_function(session: Session, project: Path) -> None:
    write(
        project,
        "def test_mine(gpu_benchmark):\n    x, y = torch.randn(2, 4096)\n    assert torch.equal(gpu_benchmark(torch.add, x, y), x + y)\n",
    )
    done = session("test_mine.py", "--benchmark-json=out.json")
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads((project / "out.json").read_text())["benchmarks"]
    info = found["extra_info"]
    assert found["fullname"] == "test_mine.py::test_mine"
    assert found["options"]["timer"] == info["timer"] == "host"
    assert found["stats"]["rounds"] == 2 * 2
    # Two inputs read, one result written.
    assert info["gb_per_s"] * info["time_us"] * 1e3 == pytest.approx(3 * 4 * 4096)
    assert "sol" in info


def test_views_keep_their_strides_and_overwritten_arguments_are_restored(session: Session, project: Path) -> None:
    """The function itself asserts on every one of its calls, timed or not."""
    write(
        project,
        "def test_in_place(gpu_benchmark):\n"
        "    qkv = torch.randn(8, 48)\n"
        "    q, k = qkv[:, :16], qkv[:, 16:32]\n"
        "    before, places = q.clone(), set()\n"
        "    def rotate(q, *, k):\n"
        "        assert q.stride() == k.stride() == (48, 1)\n"
        "        assert k.data_ptr() - q.data_ptr() == 64, 'one packed buffer'\n"
        "        assert torch.equal(q, before), 'a call saw what the one before it wrote'\n"
        "        places.add(q.data_ptr())\n"
        "        q.add_(k)\n"
        "    gpu_benchmark(rotate, q, k=k)\n"
        "    assert torch.equal(q, before + k), 'called once on the arguments themselves'\n"
        "    assert len(places) == 3, 'the arguments, and one place per replicate'\n",
    )
    done = session("test_mine.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_speed_compares_in_the_same_rounds_and_fails_readably(session: Session, project: Path) -> None:
    write(
        project,
        SLEEP + "@pytest.mark.speed(min_speedup=2, over=slow)\n"
        "def test_fast(gpu_benchmark):\n    gpu_benchmark(fast, torch.ones(8))\n\n"
        "@pytest.mark.speed(min_speedup=2, over=fast)\n"
        "def test_slow(gpu_benchmark):\n    gpu_benchmark(slow, torch.ones(8))\n\n"
        "@pytest.mark.speed(min_speedup=2)\n"
        "def test_alone(gpu_benchmark):\n    gpu_benchmark(fast, torch.ones(8))\n\n"
        "@pytest.mark.speed(2, over=slow)\n"
        "def test_positional(gpu_benchmark):\n    gpu_benchmark(fast, torch.ones(8))\n\n"
        "@pytest.mark.sol(min=1)\n"
        "def test_limit(gpu_benchmark):\n    gpu_benchmark(slow, torch.ones(8))\n",
    )
    done = session("test_mine.py", "--fusebench-replicates=4")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "PASSED test_mine.py::test_fast" in done.stdout, done.stdout
    assert "test_slow is slower than speed(min_speedup=2) allows" in done.stdout
    assert "as fast as fast" in done.stdout
    assert "4 placements, timer host, cold cache" in done.stdout
    assert "test_alone: speed(min_speedup=2, over=None): expected a function of the same arguments" in done.stdout
    assert "expected @pytest.mark.speed(min_speedup=NUMBER, over=...)" in done.stdout
    assert "test_limit is slower than sol(min=1) allows" in done.stdout
    assert "asked:    at least 100.0 %" in done.stdout


def test_a_function_that_fails_fails_its_test_as_without_the_fixture(session: Session, project: Path) -> None:
    write(
        project,
        "def broken(x):\n    raise ValueError('planted')\n\ndef test_mine(gpu_benchmark):\n    gpu_benchmark(broken, torch.ones(2))\n",
    )
    done = session("test_mine.py")
    assert done.returncode == 1
    assert "ValueError: planted" in done.stdout


def test_without_timing_the_result_is_still_asserted_on(session: Session, project: Path) -> None:
    """With xdist pytest-benchmark is disabled: nothing is timed, so the GPU is not shared, and the summary says so."""
    write(
        project, SLEEP + "@pytest.mark.sol(min=0.5)\ndef test_mine(gpu_benchmark):\n    assert gpu_benchmark(fast, torch.ones(2))[0] == 2\n"
    )
    sessions = [session("test_mine.py", *arguments) for arguments in (["--benchmark-disable"], ["-n1"])]
    for done in sessions:
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 passed" in done.stdout
        assert "time us" not in done.stdout
    assert "test_mine.py::test_mine is not timed, so sol is not judged: benchmarks are disabled" in sessions[0].stdout


def test_a_kernel_in_tritons_interpreter_is_run_and_not_timed(session: Session, project: Path) -> None:
    write(
        project,
        "import triton\nimport triton.language as tl\n\n"
        "@triton.jit\n"
        "def kernel(x, SIZE: tl.constexpr):\n"
        "    at = x + tl.arange(0, SIZE)\n"
        "    tl.store(at, 2 * tl.load(at))\n\n"
        "def double(x):\n    kernel[(1,)](x, SIZE=8)\n    return x\n\n"
        "def test_mine(gpu_benchmark):\n    assert gpu_benchmark(double, torch.ones(8)).tolist() == [2.0] * 8\n",
    )
    done = session("test_mine.py", env={"TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is not timed: it ran in Triton's interpreter" in done.stdout
    assert "Benchmark fixture was not used" not in done.stdout + done.stderr
    assert "time us" not in done.stdout


def test_without_pytest_benchmark_the_fixture_says_what_to_install(session: Session, project: Path) -> None:
    write(project, "def test_mine(gpu_benchmark):\n    pass\n")
    done = session("test_mine.py", "-p", "no:benchmark")
    assert done.returncode == 1
    assert "pip install 'fusebench[pytest]'" in done.stdout
