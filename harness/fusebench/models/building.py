"""Building a transformer on its device: random weights with realistic statistics, or a person's own from a local folder.

Random matrices keep the variance of what they multiply (standard deviation 1 / sqrt(inputs), LeCun et al., "Efficient BackProp", 1998).
Scales, shifts and gates then come out near 0.5, and every block adds a part of the residual stream's size.  At full depth, 512 channels
and bfloat16, its RMS grows from 1.1 after the first block to 4.0 after the last of FLUX.1-dev's 57, and to 3.4 of HunyuanVideo's:
as the square root of the depth, with its largest value at 3 to 5 times the RMS.

Limits: trained models have channels 30 to 100 times larger than the rest, streams that grow faster, and attention that picks tokens, where
random queries and keys weigh all tokens much alike.  Time depends on none of it but through power; rounding errors do.  Drift with random
weights shows whether the fused ops compute the same, not how far a picture moves.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from .diffusion_model import DiffusionModel

if TYPE_CHECKING:
    import torch

BIAS_STD = 0.02
NORM_WEIGHT_STD = 0.1
TABLE_STD = 0.5
"""Of learned tables that are added to scale, shift and gate (`scale_shift_table`): the size that these have where a matrix makes them."""


def full_config(model: DiffusionModel, *, tiny: bool = False, layers: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Constructor arguments of the transformer, with stacks cut to `layers` blocks where given.

    Raises:
        UsageError: an unknown stack, or a number of blocks that the model does not have.
    """
    config = dict(model.config) | (dict(model.tiny_config) if tiny else {})
    for stack, count in (layers or {}).items():
        if stack not in model.stacks:
            raise UsageError(f"model {model.name!r} has no stack {stack!r}; expected one of {', '.join(model.stacks)}")
        if not 1 <= count <= config[stack]:
            raise UsageError(f"{stack}={count}: model {model.name!r} has 1 to {config[stack]} of these blocks")
        config[stack] = count
    return config


def build(model: DiffusionModel, config: Mapping[str, Any], *, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Any:
    """The transformer with random weights, in evaluation mode, built on `device`.  On torch's meta device it has shapes and no values."""
    import torch

    with _default_dtype(dtype), torch.device(device):
        transformer = model.transformer(**config)
    keep = tuple(model.transformer._keep_in_fp32_modules or ())
    generator = None if device.type == "meta" else torch.Generator(device=device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in transformer.named_parameters():
            if any(part in name.split(".") for part in keep):  # as from_pretrained chooses them
                parameter.data = parameter.data.float()
            _fill(name, parameter, generator)
    return transformer.eval().requires_grad_(False)


def load(model: DiffusionModel, folder: Path, *, device: torch.device, dtype: torch.dtype) -> Any:
    """The transformer with the weights of a local folder in diffusers' form; nothing is downloaded.

    Raises:
        UsageError: the folder holds no such model, or diffusers needs accelerate to load it.
    """
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} holds no config.json; expected a folder of {model.transformer.__name__} as save_pretrained writes it")
    if model.transformer._keep_in_fp32_modules and importlib.util.find_spec("accelerate") is None:
        raise UsageError(
            f"diffusers loads {model.transformer.__name__}, a part of which stays float32, with accelerate: pip install accelerate"
        )
    transformer = model.transformer.from_pretrained(folder, torch_dtype=dtype, local_files_only=True)
    return transformer.to(device).eval().requires_grad_(False)


def _fill(name: str, parameter: torch.Tensor, generator: torch.Generator | None) -> None:
    """Weights of matrices keep the variance of what they multiply; biases are small; norms' weights scatter around one; tables modulate."""
    if name.endswith("scale_shift_table"):
        parameter.normal_(0.0, TABLE_STD, generator=generator)
    elif parameter.ndim >= 2:
        parameter.normal_(0.0, 1.0 / math.sqrt(parameter[0].numel()), generator=generator)
    elif name.endswith("bias"):
        parameter.normal_(0.0, BIAS_STD, generator=generator)
    else:
        parameter.normal_(1.0, NORM_WEIGHT_STD, generator=generator)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
