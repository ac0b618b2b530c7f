"""The CUDA source compiles for GPUs that this machine lacks, to the machine code it was written for; what it declines does not compile."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

BFLOAT16, FLOAT16, FLOAT32 = 0, 1, 2
ARCHITECTURES = ("sm_80", "sm_90")

FLUX = {
    "head_dim": 128, "rotary": 128, "q_heads": 24, "k_heads": 24, "dtype": BFLOAT16, "cache_dtype": FLOAT32, "interleaved": True,
    "round_norm": False, "affine": True, "wide_positions": True, "aligned": True, "cache_aligned": True, "unroll": 6,
}  # fmt: skip
NEOX = {"interleaved": False}
SPECIALISATIONS: dict[str, dict[str, Any]] = {
    "interleaved": {},
    "neox": NEOX,
    "neox, D 80, R 32": NEOX | {"head_dim": 80, "rotary": 32, "affine": False, "round_norm": True},
    "R/2 odd": {"head_dim": 96, "rotary": 66, "cache_aligned": False, "dtype": FLOAT16, "cache_dtype": FLOAT16, "wide_positions": False},
    "D 256 float32": {"head_dim": 256, "rotary": 256, "dtype": FLOAT32, "unroll": 3},
    "D 256 float32 neox": NEOX | {"head_dim": 256, "rotary": 256, "dtype": FLOAT32, "unroll": 1, "k_heads": 1},
    "unaligned": {"aligned": False, "cache_aligned": False, "unroll": 1},
}


def source(module: Any, **changes: Any) -> Any:
    """The `nvrtc.KernelSource` of FLUX's specialisation with these changes."""
    return module("fused_cuda").specialise(**(FLUX | changes))


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", SPECIALISATIONS)
def test_every_kind_of_specialisation_compiles(module: Any, cuda_code: Any, name: str, arch: str) -> None:
    assert cuda_code.compile(source(module, **SPECIALISATIONS[name]), arch)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_default_specialisation_moves_16_bytes_in_registers_alone(module: Any, cuda_code: Any, arch: str) -> None:
    used = cuda_code.resources(source(module), arch)
    assert (used["SHARED"], used["STACK"], used["LOCAL"]) == (0, 0, 0)
    assert used["REG"] <= 64, "four blocks of 256 threads fit a multiprocessor's 65536 registers"
    machine_code = cuda_code.sass(source(module), arch)
    assert set(re.findall(r"STG\.E\S*", machine_code)) == {"STG.E.128"}
    # The positions are the only loads narrower than 16 bytes.
    assert set(re.findall(r"LDG\.E\S*", machine_code)) <= {"LDG.E.128", "LDG.E.128.CONSTANT", "LDG.E.64", "LDG.E.64.CONSTANT"}
    assert len(re.findall(r"LDG\.E\.128", machine_code)) >= FLUX["unroll"]


def test_narrow_accesses_and_spills_would_be_seen(module: Any, cuda_code: Any) -> None:
    """The detectors above on planted defects: rows that start anywhere, and more rows in flight than registers hold."""
    unaligned = cuda_code.sass(source(module, aligned=False))
    assert set(re.findall(r"STG\.E\S*", unaligned)) != {"STG.E.128"}
    assert cuda_code.resources(source(module, unroll=24))["STACK"] > 0


DECLINED: dict[str, dict[str, Any]] = {
    "neox, R/2 is no whole number of vectors": {"layout": "neox", "head_dim": 96, "rope_dim": 66},
    "neox float16, R/2 of half a vector": {"layout": "neox", "head_dim": 64, "rope_dim": 8, "dtype": "float16"},
    "neox float32, halves in different passes": {"layout": "neox", "head_dim": 256, "rope_dim": 192, "dtype": "float32"},
}


@pytest.fixture
def judged(collection: Any, module: Any, cuda_code: Any) -> Callable[[Any], tuple[str | None, str]]:
    """`judged(params)`: why the kernel declines a case, None where it does not, and what NVRTC says of the case's specialisation, empty
    where it compiles."""

    def judge(params: Any) -> tuple[str | None, str]:
        changes = {
            "head_dim": params.head_dim,
            "rotary": params.rotary,
            "dtype": {"bfloat16": BFLOAT16, "float16": FLOAT16, "float32": FLOAT32}[params.dtype],
            "interleaved": params.layout == "interleaved",
            "unroll": 1,
        }
        declined = collection.kernel("qknorm_rope/fused_cuda@1").reason_unsupported(params)
        try:
            cuda_code.compile(source(module, **changes))
        except Exception as error:  # noqa: BLE001 - cuda-core's class is private; its message is what counts
            return declined, str(error)
        return declined, ""

    return judge


@pytest.mark.parametrize("name", DECLINED)
def test_what_supports_declines_the_source_refuses(judged: Any, parse: Any, name: str) -> None:
    params = parse(**DECLINED[name])
    declined, error = judged(params)
    assert declined is not None
    assert f"rope_dim {params.rotary}" in declined
    assert "static assertion failed" in error


SIZES = [(64, 8), (64, 64), (80, 80), (96, 48), (128, 126), (256, 160), (256, 256)]
"""Head and rotated dimensions on both sides of each of the source's conditions."""


@pytest.mark.parametrize("layout", ["interleaved", "neox"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_supports_and_the_source_agree(judged: Any, parse: Any, layout: str, dtype: str, sizes: tuple[int, int]) -> None:
    declined, error = judged(parse(layout=layout, dtype=dtype, head_dim=sizes[0], rope_dim=sizes[1]))
    if declined is None:
        assert error == ""
    else:
        assert "static assertion failed" in error
