"""A row's statistics (row_norm.cuh), run on the CPU: rows for which sums about the wrong origin would lose digits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.cuda_on_cpu import EmulationError, run_case
from helpers.matrices import few

OP = "norm_scale_shift"


def equal(x: torch.Tensor) -> None:
    x.fill_(3.0)


def near_zero(x: torch.Tensor) -> None:
    """A mean of seven deviations: 16-bit rows are summed once, float32 rows twice."""
    x.add_(7.0)


def far_from_zero(x: torch.Tensor) -> None:
    """A mean of a hundred deviations, or a thousand: all rows are summed twice."""
    x.add_(100.0 if x.dtype == torch.bfloat16 else 1000.0)


def outlier_first(x: torch.Tensor) -> None:
    """One element is far from all others."""
    x[..., 0] = 1000.0


def outlier_of_every_warp(x: torch.Tensor) -> None:
    x[..., :: 32 * 8] = -1000.0


def huge_outlier_first(x: torch.Tensor) -> None:
    """The largest values that a check draws (LARGE_ROWS): the squares of a whole row of them are just finite."""
    x.mul_(1e14)
    x[..., 0] = 5.5e16


FILLS = {made.__name__: made for made in (equal, near_zero, far_from_zero, outlier_first, outlier_of_every_warp, huge_outlier_first)}
WIDTHS = {
    "one warp": 264,
    "several warps": 1336,
    "lanes without elements": 520,
    "warps that skip": 1032,
    "more warps than lanes add one by one": 7176,
}
EVERY = [
    (version, dtype, width, fill)
    for version in (1, 2, 3, 4, 5)
    for dtype in ("bfloat16", "float16", "float32")
    for width in WIDTHS
    for fill in FILLS
    if (version, dtype, WIDTHS[width]) != (3, "float32", 7176)  # two such rows do not fit into shared memory
    if (dtype, fill) != ("float16", "huge_outlier_first")  # beyond its range
]
KEPT = (*((version, "float32", "several warps", "near_zero") for version in (1, 3, 4)), (5, "bfloat16", "one warp", "equal"),
        (4, "float16", "warps that skip", "far_from_zero"), (2, "bfloat16", "several warps", "huge_outlier_first"))  # fmt: skip


@pytest.fixture
def run(collection: Any, built: Path) -> Callable[..., Any]:
    """`run(version, fields, fill)`: a version's call for rows that a function of FILLS wrote."""

    def call(version: int, fields: Mapping[str, Any], fill: str, **options: Any) -> Any:
        kernel = collection.kernel(f"{OP}/fused_cuda@{version}")
        # Four rows or more for each of three multiprocessors, so that a row follows another.
        return run_case(
            collection.op(OP), kernel, {"tokens": 15, **fields}, built, fill=lambda arguments: FILLS[fill](arguments["x"]), **options
        )

    return call


def error_of(y: torch.Tensor, reference: torch.Tensor) -> float:
    """Of the row whose error is largest, the largest as a share of the row's largest value."""
    return float(((y.double() - reference).abs().amax(-1) / reference.abs().amax(-1)).max())


ROUNDING = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-21}
"""Of bfloat16 and float16 one rounding. Of float32 a few, of sums of 7176 values."""


def most(y: torch.Tensor, fill: str) -> float:
    """The error that is allowed: a float32 mean of a thousand deviations is rounded itself."""
    return ROUNDING[y.dtype] * (4 if fill == "far_from_zero" and y.dtype == torch.float32 else 1)


@pytest.mark.parametrize(("version", "dtype", "width", "fill"), few(EVERY, *KEPT))
def test_no_row_loses_digits(run: Any, version: int, dtype: str, width: str, fill: str) -> None:
    found = run(version, {"hidden": WIDTHS[width], "dtype": dtype}, fill)
    y, reference = found.outputs["y"], found.reference["y"]
    assert error_of(y, reference) <= most(y, fill)
    if fill == "equal":
        assert torch.equal(y, found.arguments["shift"].expand_as(y)), "equal values leave exactly zeros, and so the shift"


PLANTED = {
    "16-bit rows summed once": ("float16", "far_from_zero", "if (!near) {", "if (false) {"),
    "float32 rows summed once": ("float32", "far_from_zero", "if (!near) {", "if (false) {"),
    "second sums about zero": ("float32", "far_from_zero", "origin[r] = sums[r].first * (1.0f / D);", ""),
    "a repeated vector counted twice": ("float16", "near_zero", "holds(i, member) ? x[e] - origin : 0.0f", "x[e] - origin"),
}


@pytest.mark.parametrize("defect", PLANTED)
def test_a_defect_is_seen(run: Any, defect: str) -> None:
    dtype, fill, right, wrong = PLANTED[defect]
    found = run(4, {"hidden": 1336, "dtype": dtype}, fill, planted={right: wrong})
    assert not error_of(found.outputs["y"], found.reference["y"]) <= most(found.outputs["y"], fill)


def test_second_sums_in_the_slot_of_the_first_are_seen(run: Any) -> None:
    planted = {"exchange.slot[2], sums": "exchange.slot[turn & 1], sums"}
    with pytest.raises(EmulationError, match="wait for one another"):  # a warp that reads another's second sums takes another way
        run(4, {"hidden": 1336, "dtype": "float32"}, "far_from_zero", planted=planted)


LEAVING = [(f"{op}/fused_cuda@{version}", op) for op in (OP, "norm_tanh_mul_add") for version in (1, 3, 4)]


@pytest.mark.parametrize(("kernel", "op"), few(LEAVING, LEAVING[2], LEAVING[4]))
def test_what_leaves_the_l2_first_is_right_too(collection: Any, built: Path, one_rounding: Any, kernel: str, op: str) -> None:
    chosen = []
    for hidden, share in ((520, 1.0), (528, 10.0), (536, 1.9)):  # widths of their own: launch settings are kept by shape
        fields = {"batch": 2, "tokens": 24, "hidden": hidden, "affine": True}
        found = run_case(collection.op(op), collection.kernel(kernel), fields, built, l2_bytes=int(share * 2 * 24 * hidden * 2))
        (source,) = found.launched
        chosen.append(dict(source.macros)["LEAVES"])
        assert one_rounding(found.outputs["y"], found.reference["y"]) <= 1
    assert chosen == [0, 0, 1], "more is written than fits; all fits; what is written fits, and all does not"


@pytest.mark.parametrize(
    ("strides", "code"),
    [((0, 0, 8, 0), 0), ((0, 0, 8, 1), 1), ((64, 0, 8, 1), 3), ((512, 64, 1, 1), 4), ((512, 64, 4, 1), 2)],
    ids=["one value", "one row", "a row for each sample", "a row for each token", "a row for each frame"],
)
def test_how_device_code_addresses_a_modulation(shared: Any, strides: tuple[int, int, int, int], code: int) -> None:
    assert shared("cuda_rows").addressing_code(shared("modulation").Broadcast(*strides)) == code
