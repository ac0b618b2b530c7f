"""Random input values that show more than plain normal noise.

Activations of diffusion transformers have a few channels far larger than the rest.  A kernel that sums squares in low precision, or whose
clocks depend on the data, behaves differently on them.  Ops build their inputs from these functions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

OUTLIER_SHARE = 1 / 64
"""Share of channels that are outliers (at least one)."""
OUTLIER_FACTORS = (30.0, 100.0)
"""Range of the factor by which an outlier channel is larger than the others, uniformly drawn."""


def normal_with_outliers(
    shape: tuple[int, ...],
    *,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
    magnitude: float = 1.0,
) -> torch.Tensor:
    """Normal values of standard deviation `magnitude`, a few channels of the last dimension 30 to 100 times larger.

    Args:
        shape: shape of the result; the last dimension is the channels.
        dtype: dtype of the result; values are drawn in float32 and rounded once.
        device: where the values are drawn and returned; `generator` must be of that device.

    Returns:
        A contiguous tensor of `shape`.
    """
    import torch

    values = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
    channels = shape[-1]
    outliers = torch.randperm(channels, generator=generator, device=device)[: max(1, round(channels * OUTLIER_SHARE))]
    low, high = OUTLIER_FACTORS
    factors = torch.rand(len(outliers), generator=generator, device=device) * (high - low) + low
    values[..., outliers] *= factors
    return values.mul_(magnitude).to(dtype)


def norm_weight(channels: int, *, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """A norm's weight `[channels]`: normal around one with standard deviation 0.25, similar to trained weights."""
    import torch

    values = torch.randn(channels, generator=generator, device=device, dtype=torch.float32)
    return values.mul_(0.25).add_(1.0).to(dtype)


UNUSUAL_SHARE = 0.25
"""Share of channels that `unusual_channels` changes.  The others keep their spread, so that errors relative to each channel, which
`gate` compares with stored ones, stay those of usual values."""


_LEAST_INNER = 6
"""Positions of which some can be moved while both ends stay."""


def unusual_channels(
    values: torch.Tensor, *, generator: torch.Generator, least: float = 2.0**-4, most: float = 4.0, share: float = UNUSUAL_SHARE
) -> torch.Tensor:
    """`values` with random channels of the last dimension replaced: from `least` to `most`, uniform in their logarithm, of both signs.

    A kernel that leaves out a weight, a bias, a gate, a scale or a shift, or clamps one, is wrong in these channels by far.
    """
    import torch

    drawn: Any = {"generator": generator, "device": values.device, "dtype": torch.float32}
    span = math.log2(most / least)
    size = (torch.rand(values.shape, **drawn) * span + math.log2(least)).exp2()
    size *= torch.where(torch.rand(values.shape, **drawn) < 0.5, -1.0, 1.0)
    chosen = torch.rand(values.shape[-1], **drawn) < share
    return torch.where(chosen, size.to(values.dtype), values)


def shuffled_positions(usual: torch.Tensor, tokens: int, *, generator: torch.Generator) -> torch.Tensor:
    """Positions `[N]` in `0 ... tokens - 1` in no order: a third of the calls permute `usual`, a third repeat some and leave some out, and
    a third permute two of them up to all but the ends: a kernel that looks at a few positions takes these for the usual ones.

    Never equal to `usual`, unless there is one position only.
    """
    import torch

    drawn_by: Any = {"generator": generator, "device": usual.device}
    kind = int(torch.randint(3, (), **drawn_by))
    if kind == 2 and len(usual) >= _LEAST_INNER:
        inner = 1 + torch.randperm(len(usual) - 2, **drawn_by)
        share = 2.0 ** -float(torch.rand((), **drawn_by) * math.log2(len(inner)))
        moved = inner[: max(2, int(share * len(inner)))]
        drawn = usual.clone()
        drawn[moved] = usual[moved.roll(1)]
    elif kind:
        drawn = usual[torch.randperm(len(usual), **drawn_by)]
    else:
        drawn = torch.randint(tokens, usual.shape, **drawn_by).to(usual.dtype)
    return (drawn + 1) % tokens if torch.equal(drawn, usual) else drawn


def shuffled_rows(*tables: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """`tables` `[rows, ...]` with their rows in one random order: a kernel that computes a row from others is wrong."""
    import torch

    order = torch.randperm(len(tables[0]), generator=generator, device=tables[0].device)
    return tuple(table[order] for table in tables)


def rotary_table(rows: int, rotary: int, *, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """`[rows, rotary]` float64: cosines, then sines, of angles that nothing but the table tells.

    The angles grow with the row as in any rotary embedding, but from a random base and random phases.  Every pair of channels has a random
    amplitude from 0.5 to 1.5, as tables of scaled rotary embeddings have one (YaRN's attention factor; Peng et al., arXiv:2309.00071): a
    kernel that computes the table, or the sine from the cosine, is wrong.
    """
    import torch

    drawn: Any = {"generator": generator, "device": device, "dtype": torch.float64}
    base = 10.0 ** (2.0 + 4.0 * torch.rand((), **drawn))
    frequencies = base ** (-torch.arange(0, rotary, 2, device=device, dtype=torch.float64) / rotary)
    phases, amplitudes = 2 * math.pi * torch.rand(rotary // 2, **drawn), 0.5 + torch.rand(rotary // 2, **drawn)
    angles = torch.arange(rows, device=device, dtype=torch.float64)[:, None] * frequencies + phases
    return torch.cat((angles.cos() * amplitudes, angles.sin() * amplitudes), dim=-1)
