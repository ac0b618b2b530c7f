"""Every broadcast form is read where torch's broadcasting reads it, and what is no form is refused."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

from fusebench.errors import KernelArgumentError
from fusebench.registry.layouts import layout_of

B, S, D, F = 2, 6, 8, 3
X = torch.zeros(B, S, D)

SHAPES: dict[str, tuple[int, ...]] = {
    "one value": (1,),
    "[D]": (D,),
    "[1, D]": (1, D),
    "[B, D]": (B, D),
    "[1, 1, D]": (1, 1, D),
    "[B, 1, D]": (B, 1, D),
    "[1, S, D]": (1, S, D),
    "[B, S, D]": (B, S, D),
    "[1, F, 1, D]": (1, F, 1, D),
    "[B, F, 1, D]": (B, F, 1, D),
    "[B, 1, 1, D]": (B, 1, 1, D),
    "[B, S, 1, D]": (B, S, 1, D),
}
FORMS = {
    "one value": "scalar", "[D]": "channel", "[1, D]": "channel", "[B, D]": "batch", "[1, 1, D]": "channel", "[B, 1, D]": "batch",
    "[1, S, D]": "token", "[B, S, D]": "token", "[1, F, 1, D]": "frame", "[B, F, 1, D]": "frame", "[B, 1, 1, D]": "batch",
    "[B, S, 1, D]": "frame",
}  # fmt: skip


def spread(values: torch.Tensor) -> torch.Tensor:
    """[B, S, D] by torch's own broadcasting and repetition."""
    if values.dim() == 4:
        return values.repeat_interleave(S // values.shape[1], dim=1).flatten(1, 2).expand(B, S, D)
    return (values[:, None] if values.dim() == 2 else values).expand(B, S, D)


def made(name: str, strided: bool) -> torch.Tensor:
    shape = SHAPES[name]
    whole = torch.randn(*shape[:-1], 3 * shape[-1]) if strided else torch.randn(shape)
    return whole.chunk(3, dim=-1)[1] if strided else whole


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_the_described_address_holds_the_broadcast_value(shared: Any, name: str, strided: bool) -> None:
    values = made(name, strided)
    at = shared("modulation").broadcast("op", "scale", layout_of(values), layout_of(X))
    storage = values.as_strided((values.untyped_storage().nbytes() // 4 - values.storage_offset(),), (1,))
    due = spread(values)
    for batch in range(B):
        for token in range(S):
            for channel in range(D):
                place = batch * at.batch_stride + (token // at.rows_per_group) * at.group_stride + channel * at.channel_stride
                assert storage[place] == due[batch, token, channel]
    assert S % at.rows_per_group == 0


@pytest.mark.parametrize("name", SHAPES)
def test_combining_in_torch_is_combining_with_the_spread_values(shared: Any, name: str) -> None:
    values, x = made(name, strided=True), torch.randn(B, S, D)
    assert torch.equal(shared("modulation").combine(operator.mul, x, values), x * spread(values))


@pytest.mark.parametrize("name", SHAPES)
def test_the_form_is_the_narrowest_that_reads_the_same_values(shared: Any, name: str) -> None:
    form, frames = shared("modulation").form_of(layout_of(made(name, strided=False)))
    assert form == FORMS[name]
    assert frames == (SHAPES[name][1] if form == "frame" else 1)


@pytest.mark.parametrize("name", SHAPES)
def test_device_code_is_told_what_it_needs_to_address(shared: Any, name: str) -> None:
    modulation = shared("modulation")
    found = modulation.broadcast("op", "scale", layout_of(made(name, strided=False)), layout_of(X)).addressing
    due = {"scalar": modulation.SCALAR, "channel": modulation.CHANNEL}.get(FORMS[name], modulation.ROW)
    assert found == due


@pytest.mark.parametrize("form", ["scalar", "channel", "batch", "token", "frame"])
def test_a_forms_own_shape_has_that_form(shared: Any, form: str) -> None:
    modulation = shared("modulation")
    shape = modulation.shape_of(form, batch=B, tokens=S, frames=F, hidden=D)
    assert modulation.form_of(layout_of(torch.ones(shape))) == (form, F if form == "frame" else 1)


def test_the_widest_form_is_the_one_read_from_the_most_places(shared: Any) -> None:
    widest = shared("modulation").widest
    assert widest(("scalar", 1), ("token", 1), ("batch", 1)) == ("token", 1)
    assert widest(("frame", 2), ("frame", 3)) == ("frame", 3)


REFUSED: dict[str, tuple[torch.Tensor, str]] = {
    "0 dimensions": (torch.ones(()), r"found \[\] in torch.float32; accepted is \[1\], \[D\]"),
    "another length": (torch.ones(4), r"found \[4\]"),
    "another batch": (torch.ones(3, D), r"found \[3, 8\].*B, S, D = 2, 6, 8"),
    "another token count": (torch.ones(B, 4, D), r"found \[2, 4, 8\]"),
    "frames that do not divide": (torch.ones(B, 4, 1, D), r"found \[2, 4, 1, 8\].*F dividing S"),
    "no frames": (torch.ones(B, 0, 1, D), r"found \[2, 0, 1, 8\]"),
    "tokens within frames": (torch.ones(B, F, 2, D), r"found \[2, 3, 2, 8\]"),
    "five dimensions": (torch.ones(1, B, F, 1, D), r"found \[1, 2, 3, 1, 8\]"),
    "another 16-bit dtype": (torch.ones(D, dtype=torch.float16), "in torch.float16; .* in float32;"),
    "gaps between channels": (torch.ones(2 * D)[::2], r"strides \(2,\); accepted is a last stride of 1"),
    "another device": (torch.ones(D, device="meta"), "device meta; accepted is cpu, like x"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_form_is_refused_with_what_is(shared: Any, name: str) -> None:
    values, message = REFUSED[name]
    with pytest.raises(KernelArgumentError, match=rf"op: argument scale: found .*{message.removeprefix('found ')}"):
        shared("modulation").broadcast("op", "scale", layout_of(values), layout_of(X))


def test_float32_values_modulate_16_bit_rows(shared: Any) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert shared("modulation").broadcast("op", "scale", layout_of(torch.ones(D, dtype=dtype)), layout_of(X.bfloat16()))
