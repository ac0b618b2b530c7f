"""head_vectors.cu compiles for heads of any width up to a warp, in registers alone, with 16-byte accesses, and any distance of a pair."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from helpers.turned_heads import MULTIPROCESSORS, call_of


def source(shared: Any, *, unroll: int = 0, **changes: Any) -> Any:
    vectors = shared("head_vectors")
    call = call_of(shared("rotary_heads"), **changes)
    split = vectors.split_heads(call, MULTIPROCESSORS)
    return vectors.specialise(call, split._replace(unroll=unroll) if unroll else split)


KINDS: dict[str, dict[str, Any]] = {
    "80 neox": {"head_dim": 80},
    "96 neox, halves of 60 bytes": {"head_dim": 96, "rotary": 60, "k_heads": 4},
    "256 interleaved, 190 of it turned": {"head_dim": 256, "rotary": 190, "interleaved": True},
    "rotation alone of 80, no k": {"head_dim": 80, "norm": False, "k_heads": 0},
    "float32": {"dtype": torch.float32, "head_dim": 96},
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_stays_in_registers_and_moves_16_bytes(shared: Any, cuda_code: Any, name: str) -> None:
    compiled = source(shared, **KINDS[name])
    used = cuda_code.resources(compiled)
    assert (used["SHARED"], used["STACK"], used["LOCAL"]) == (0, 0, 0)
    machine_code = cuda_code.sass(compiled)
    assert set(re.findall(r"STG\.E\S*", machine_code)) == {"STG.E.128"}
    # Cosines and sines are read-only; what is overwritten is not.
    loads = {load for load in re.findall(r"LDG\.E\S*", machine_code) if "CONSTANT" not in load}
    assert loads == {"LDG.E.128"}


def test_narrow_accesses_and_spills_would_be_seen(shared: Any, cuda_code: Any) -> None:
    assert "STG.E.U16" in cuda_code.sass(source(shared, aligned=False))
    assert cuda_code.resources(source(shared, unroll=16))["STACK"] > 0


@pytest.mark.parametrize(
    ("changes", "norm", "reason"),
    [
        ({"head_dim": 256, "dtype": torch.float32}, True, "a warp holds at most 128"),
        ({"head_dim": 320}, False, "a warp holds at most 256"),
        ({"rotary": 36}, False, "a multiple of 8 elements"),
    ],
)
def test_what_is_declined_is_refused_by_the_source_too(
    shared: Any, cuda_code: Any, changes: dict[str, Any], norm: bool, reason: str
) -> None:
    asked = {"head_dim": 128, "dtype": torch.bfloat16} | changes
    rotary = asked.get("rotary") or asked["head_dim"]
    declined = shared("head_vectors").declined("neox", rotary, asked["head_dim"], asked["dtype"].itemsize, norm=norm)
    assert declined is not None
    assert reason in declined
    with pytest.raises(Exception, match=r"static assertion|division"):
        cuda_code.compile(source(shared, norm=norm, unroll=1, **changes), "sm_90")


@pytest.mark.parametrize(
    ("changes", "unroll", "blocks"),
    [
        pytest.param({"rows": 6, "interleaved": True}, 1, 8, id="few heads: one to a lane"),
        pytest.param({"rows": 512, "interleaved": True}, 3, 8, id="the fewest with which all blocks are resident"),
        pytest.param({"interleaved": True}, 6, 8, id="many interleaved heads"),
        pytest.param({}, 6, 6, id="many neox heads"),
        pytest.param({"k_heads": 0}, 6, 6, id="24 heads"),
    ],
)
def test_heads_of_a_lane(shared: Any, changes: dict[str, Any], unroll: int, blocks: int) -> None:
    macros = dict(source(shared, **changes).macros)
    assert (macros["UNROLL"], macros["MIN_BLOCKS"]) == (unroll, blocks)
