"""rotary_heads.cu compiles for every width of a head, in registers alone, with 16-byte accesses; what it declines does not compile."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from helpers.turned_heads import MULTIPROCESSORS, call_of


def source(shared: Any, *, unroll: int = 0, **changes: Any) -> Any:
    heads = shared("rotary_heads")
    call = call_of(heads, **changes)
    split = heads.split_heads(call, MULTIPROCESSORS)
    return heads.specialise(call, split._replace(unroll=unroll) if unroll else split)


KINDS: dict[str, dict[str, Any]] = {
    "128 interleaved": {"interleaved": True},
    "80 neox": {"head_dim": 80},
    "96 interleaved": {"head_dim": 96, "interleaved": True},
    "128, 64 of it turned": {"rotary": 64},
    "rotation alone of 320": {"head_dim": 320, "norm": False},
    "rotation alone of 96 interleaved, no k": {"head_dim": 96, "norm": False, "interleaved": True, "k_heads": 0},
    "float32": {"dtype": torch.float32, "head_dim": 64},
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_stays_in_registers_and_moves_16_bytes(shared: Any, cuda_code: Any, name: str) -> None:
    compiled = source(shared, **KINDS[name])
    used = cuda_code.resources(compiled)
    assert (used["SHARED"], used["STACK"], used["LOCAL"]) == (0, 0, 0)
    machine_code = cuda_code.sass(compiled)
    assert set(re.findall(r"STG\.E\S*", machine_code)) == {"STG.E.128"}
    # A position is the only load narrower than 16 bytes, and two cosines of a float32 vector's pairs.
    assert set(re.findall(r"LDG\.E\S*", machine_code)) <= {"LDG.E.128", "LDG.E.128.CONSTANT", "LDG.E.64.CONSTANT", "LDG.E.CONSTANT"}


def test_narrow_accesses_and_spills_would_be_seen(shared: Any, cuda_code: Any) -> None:
    """The detectors above on planted defects: rows that start anywhere, and more heads in flight than registers hold."""
    assert "STG.E.U16" in cuda_code.sass(source(shared, aligned=False))
    assert cuda_code.resources(source(shared, unroll=12))["STACK"] > 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rotary": 20, "interleaved": True}, "multiple of 8 elements"),
        ({"rotary": 24}, "half of it must be a multiple of 8"),
        ({"head_dim": 320, "dtype": torch.float32}, "at most 1024 bytes"),
    ],
)
def test_what_is_declined_is_refused_by_the_source_too(shared: Any, cuda_code: Any, changes: dict[str, Any], reason: str) -> None:
    asked = {"head_dim": 128, "rotary": 128, "interleaved": False, "dtype": torch.bfloat16} | changes
    layout = "interleaved" if asked["interleaved"] else "neox"
    rotary = asked["rotary"] if "head_dim" not in changes else asked["head_dim"]
    declined = shared("rotary_heads").declined(layout, rotary, asked["head_dim"], asked["dtype"].itemsize, norm=True)
    assert declined is not None
    assert reason in declined
    with pytest.raises(Exception, match=r"static assertion|division"):
        cuda_code.compile(source(shared, **changes), "sm_90")


@pytest.mark.parametrize(
    ("changes", "split"),
    [
        pytest.param({"rows": 6, "interleaved": True}, (1, 8), id="few heads: one to a lane"),
        pytest.param({"rows": 512, "interleaved": True}, (2, 6), id="all blocks resident with two"),
        pytest.param({"interleaved": True}, (2, 8), id="whole interleaved heads of 128"),
        pytest.param({"interleaved": True, "k_heads": 3}, (1, 8), id="an odd number of heads"),
        pytest.param({}, (1, 8), id="neox"),
        pytest.param({"head_dim": 80, "interleaved": True}, (1, 8), id="80"),
        pytest.param({"rotary": 64, "interleaved": True}, (1, 8), id="partly turned"),
        pytest.param({"dtype": torch.float32, "interleaved": True}, (1, 8), id="float32"),
        pytest.param({"norm": False}, (2, 6), id="rotation alone"),
        pytest.param({"norm": False, "head_dim": 80}, (1, 8), id="rotation alone of 80"),
    ],
)
def test_two_heads_share_a_lane_only_where_that_was_measured_faster(shared: Any, changes: dict[str, Any], split: tuple[int, int]) -> None:
    heads = shared("rotary_heads")
    found = heads.split_heads(call_of(heads, **changes), MULTIPROCESSORS)
    assert (found.unroll, found.min_blocks) == split


@pytest.mark.parametrize("name", ["80 neox", "96 interleaved", "128, 64 of it turned"])
def test_what_is_turned_is_asked_for_before_the_position_is_used(shared: Any, cuda_code: Any, name: str) -> None:
    """Else a lane waits for two loads one after the other; and no lane has a loop."""
    lines = [line for line in cuda_code.sass(source(shared, unroll=1, **KINDS[name])).splitlines() if re.search(r"/\*[0-9a-f]{4}\*/", line)]
    position = next(i for i, line in enumerate(lines) if "LDG.E.64.CONSTANT" in line)
    register = re.search(r"LDG\.E\.64\.CONSTANT (R\d+)", lines[position])
    assert register is not None
    use = next(i for i in range(position + 1, len(lines)) if re.search(rf",.*\b{register[1]}\b", lines[i]))
    assert max(i for i, line in enumerate(lines) if "LDG.E.128 " in line) < use
    branches = [(at, to) for line in lines for at, to in re.findall(r"/\*([0-9a-f]{4})\*/.*BRA (?:`\()?0x([0-9a-f]+)", line)]
    assert [at for at, to in branches if int(to, 16) < int(at, 16)] == []
