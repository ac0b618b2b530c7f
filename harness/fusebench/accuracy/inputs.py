"""Random input values that show more than plain normal noise.

Activations of diffusion transformers have a few channels far larger than the rest.  A kernel that sums squares in low precision, or whose
clocks depend on the data, behaves differently on them.  Ops build their inputs from these functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
