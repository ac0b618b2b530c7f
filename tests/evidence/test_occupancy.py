"""Theoretical occupancy against a GPU's own figures, and against CUDA's occupancy calculator, compiled here and asked the same."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusebench.errors import UnknownNameError
from fusebench.evidence.occupancy import occupancy
from fusebench.evidence.targets import KIB, TARGETS, NoTargetError, Target, target, target_of

KNOWN = [
    # target, threads, registers, shared bytes -> resident blocks, what limits
    ("sm_90", 256, 64, 0, 4, ("registers",)),
    ("sm_90", 256, 32, 0, 8, ("warps", "registers")),
    ("sm_90", 256, 33, 0, 6, ("registers",)),  # 33 x 32 rounds up to 1280 registers a warp: 12 warps to a quarter
    ("sm_90", 1024, 32, 0, 2, ("warps", "registers")),
    ("sm_90", 1024, 65, 0, 0, ("registers",)),  # 32 warps of 2304 registers are more than there are
    ("sm_90", 32, 16, 0, 32, ("blocks",)),
    ("sm_90", 128, 255, 0, 2, ("registers",)),
    ("sm_90", 128, 32, 48 * KIB, 4, ("shared",)),
    ("sm_90", 128, 32, 227 * KIB, 1, ("shared",)),
    ("sm_90", 128, 32, 227 * KIB + 1, 0, ("shared",)),
    ("sm_90", 100, 32, 0, 16, ("warps", "registers")),  # 100 threads are four warps
    ("sm_80", 256, 64, 32 * KIB, 4, ("registers", "shared")),  # 33 KiB with the system's: 164 / 33
    ("sm_100", 256, 64, 0, 4, ("registers",)),
    ("sm_120", 256, 32, 0, 6, ("warps",)),
    ("sm_120", 32, 16, 0, 24, ("blocks",)),
    ("sm_120", 128, 32, 48 * KIB, 2, ("shared",)),
]


@pytest.mark.parametrize("known", KNOWN, ids=str)
def test_known_values(known: tuple[str, int, int, int, int, tuple[str, ...]]) -> None:
    name, threads, registers, shared, blocks, limited_by = known
    found = occupancy(TARGETS[name], threads=threads, registers=registers, shared_bytes=shared)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)
    assert found.warps == blocks * -(-threads // 32)
    assert found.share == found.warps / TARGETS[name].warps


ON_AN_H200 = [
    # registers, threads, shared bytes, barriers -> blocks by registers, theoretical occupancy in percent
    (96, 128, 16, 1, 5, 31.25),
    (72, 128, 16, 1, 7, 43.75),
    (80, 256, 128, 16, 3, 37.5),
    (48, 128, 16, 1, 10, 62.5),
    (56, 128, 0, 1, 9, 56.25),
]
"""Five kernels as Nsight Compute 2025.3.1 has them: `launch__occupancy_limit_registers` and `sm__maximum_warps_per_active_cycle_pct`."""


@pytest.mark.parametrize("seen", ON_AN_H200, ids=str)
def test_what_nsight_compute_reports_on_an_h200(seen: tuple[int, int, int, int, int, float]) -> None:
    registers, threads, shared, barriers, blocks, percent = seen
    found = occupancy(TARGETS["sm_90"], threads=threads, registers=registers, shared_bytes=shared, block_barriers=barriers)
    assert (found.blocks, 100 * found.share, found.limited_by) == (blocks, percent, ("registers",))


def test_the_h200_has_what_its_driver_reports() -> None:
    """`device__attribute_*`, read off one by Nsight Compute."""
    h200 = TARGETS["sm_90"]
    assert (h200.registers, h200.shared, h200.shared_per_block, h200.shared_reserved) == (65536, 233472, 232448, 1024)
    assert (h200.warps, h200.blocks, h200.multiprocessors, h200.l2_bytes) == (64, 32, 132, 62914560)


@pytest.mark.parametrize(
    ("name", "barriers", "blocks", "limited_by"),
    [
        ("sm_90", 1, 8, ("warps", "registers")),
        ("sm_90", 16, 4, ("barriers",)),  # as `launch__occupancy_limit_barriers` has it on an H200
        ("sm_120", 16, 1, ("barriers",)),
        ("sm_80", 16, 8, ("warps", "registers")),
    ],
)
def test_a_block_that_reserves_every_barrier_keeps_others_out(name: str, barriers: int, blocks: int, limited_by: tuple[str, ...]) -> None:
    found = occupancy(TARGETS[name], threads=256, registers=32, shared_bytes=0, block_barriers=barriers)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)


@pytest.fixture(scope="module")
def calculator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`occupancy_calculator.c` compiled against the header that Triton carries."""
    spec, compiler = importlib.util.find_spec("triton"), shutil.which("cc") or shutil.which("gcc")
    assert spec is not None
    assert spec.origin is not None
    headers = Path(spec.origin).parent / "backends" / "nvidia" / "include"
    if compiler is None or not (headers / "cuda_occupancy.h").exists():
        pytest.skip("needs a C compiler and Triton's copy of cuda_occupancy.h")
    program = tmp_path_factory.mktemp("calculator") / "calculator"
    source = Path(__file__).with_name("occupancy_calculator.c")
    subprocess.run([compiler, "-w", f"-I{headers}", str(source), "-o", str(program)], check=True, capture_output=True)
    return program


Launch = tuple[int, int, int, int]
"""Threads, registers, shared bytes, barriers."""


def launches() -> Iterator[Launch]:
    for threads in (1, 32, 96, 100, 128, 160, 256, 384, 512, 768, 1000, 1024):
        for registers in (1, *range(8, 256, 13), 32, 40, 64, 255):
            for shared in (0, 16, 5000, 48 * KIB, 48 * KIB + 1, 99 * KIB, 100 * KIB, 163 * KIB, 227 * KIB, 227 * KIB + 1):
                for barriers in (1, 2, 16):
                    yield threads, registers, shared, barriers


def calculated(program: Path, one: Target) -> list[int]:
    """Resident blocks of every launch, as CUDA's calculator has them for a device like `one`."""
    device = (one.major, one.minor, one.threads_per_block, one.warps * 32, one.registers, one.shared, one.shared_per_block)
    lines = (" ".join(map(str, (*device, one.shared_reserved, *launch))) for launch in launches())
    done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


@pytest.mark.parametrize("name", TARGETS)
def test_cudas_occupancy_calculator_agrees(calculator: Path, name: str) -> None:
    ours = [
        occupancy(TARGETS[name], threads=threads, registers=registers, shared_bytes=shared, block_barriers=barriers).blocks
        for threads, registers, shared, barriers in launches()
    ]
    assert calculated(calculator, TARGETS[name]) == ours
    assert len(set(ours)) > 10, "launches of many kinds were compared"


def test_the_calculator_would_tell_a_wrong_fact(calculator: Path) -> None:
    import msgspec

    wrong = msgspec.structs.replace(TARGETS["sm_90"], shared=164 * KIB)
    assert calculated(calculator, wrong) != calculated(calculator, TARGETS["sm_90"])


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "sm_80"), ("NVIDIA H100 80GB HBM3", "sm_90"), ("NVIDIA H200", "sm_90"), ("NVIDIA GH200 480GB", "sm_90"),
        ("NVIDIA B200", "sm_100"), ("NVIDIA GB200", "sm_100"), ("NVIDIA GeForce RTX 5090", "sm_120"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "sm_120"),
    ],
)  # fmt: skip
def test_a_gpu_is_known_by_the_name_that_a_record_holds(gpu: str, name: str) -> None:
    assert target_of("cuda", gpu).name == name


def test_its_capability_says_more_than_its_name_and_a_cpu_has_a_target_too() -> None:
    assert target_of("cuda", "Graphics Device", (12, 0)).name == "sm_120"
    assert target_of("cpu", "AMD EPYC").name == "sm_90"


@pytest.mark.parametrize(
    ("gpu", "capability", "said"),
    [("NVIDIA L40S", (8, 9), r"NVIDIA L40S \(sm_89\)"), ("NVIDIA L40S", None, "NVIDIA L40S;"), ("NVIDIA A1000", None, "NVIDIA A1000;")],
)
def test_a_gpu_of_another_architecture_has_no_target(gpu: str, capability: tuple[int, int] | None, said: str) -> None:
    with pytest.raises(NoTargetError, match=said):
        target_of("cuda", gpu, capability)


def test_a_block_of_too_many_threads_does_not_fit() -> None:
    assert occupancy(TARGETS["sm_90"], threads=1056, registers=16, shared_bytes=0).blocks == 0


def test_a_block_of_no_threads_is_refused() -> None:
    with pytest.raises(ValueError, match="a block of 0 threads"):
        occupancy(TARGETS["sm_90"], threads=0, registers=16, shared_bytes=0)


def test_more_of_anything_never_raises_occupancy() -> None:
    for one in TARGETS.values():
        for threads in (32, 96, 256, 1024):
            by_registers = [occupancy(one, threads=threads, registers=count, shared_bytes=0).blocks for count in range(1, 257)]
            by_shared = [occupancy(one, threads=threads, registers=16, shared_bytes=size).blocks for size in range(0, 240 * KIB, 1000)]
            assert by_registers == sorted(by_registers, reverse=True)
            assert by_shared == sorted(by_shared, reverse=True)
            assert by_registers[255] == 0, "no thread has 256 registers"


def test_an_unknown_target_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="unknown target 'sm90'; did you mean 'sm_90'"):
        target("sm90")
