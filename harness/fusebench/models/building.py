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
import json
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
WEIGHTS = "diffusion_pytorch_model.safetensors"
"""File of a transformer's weights, as diffusers' save_pretrained names it."""
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

    transformer = _constructed(model, config, device=device, dtype=dtype)
    generator = None if device.type == "meta" else torch.Generator(device=device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in transformer.named_parameters():
            _fill(name, parameter, generator)
    return transformer.eval().requires_grad_(False)


def load(model: DiffusionModel, folder: Path, config: Mapping[str, Any], *, device: torch.device, dtype: torch.dtype) -> Any:
    """The transformer with the weights of a local folder in diffusers' form, as safetensors; nothing is downloaded or unpickled.

    Stacks have as many blocks as `config` says: the first ones of the folder's.

    Raises:
        UsageError: the folder holds no such model, one of another configuration, or not all of its weights.
    """
    import torch

    wanted = model.transformer.__name__
    stored = stored_configuration(folder, wanted)
    _require_configuration(model, folder, stored, config)
    stacks = {stack: config[stack] for stack in model.stacks}
    transformer = _constructed(model, dict(stored) | stacks, device=device, dtype=dtype, from_config=True)
    missing = transformer.state_dict()
    with torch.no_grad():
        for name, tensor in _stored_tensors(folder):
            if name in missing and missing[name].shape == tensor.shape:
                missing.pop(name).copy_(tensor)
            elif not _is_beyond(name, model, config):
                shape = f"of shape {tuple(tensor.shape)}"
                raise UsageError(f"{folder}: {name!r} {shape} is no weight of {wanted} with its config.json")
    if missing:
        raise UsageError(f"{folder}: {len(missing)} weights of {wanted} are missing, such as {next(iter(missing))!r}")
    return transformer.eval().requires_grad_(False)


def stored_configuration(folder: Path, wanted: str) -> dict[str, Any]:
    """The configuration in a folder that diffusers' `save_pretrained` wrote for a model of the class `wanted`.

    Raises:
        UsageError: there is none, it cannot be read, or it is another class's.
    """
    try:
        stored = json.loads((folder / "config.json").read_bytes())
    except FileNotFoundError:
        raise UsageError(f"{folder} holds no config.json; expected a folder of {wanted} as save_pretrained writes it") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{folder / 'config.json'}: cannot be read as JSON: {error}") from error
    if not isinstance(stored, dict) or stored.get("_class_name") != wanted:
        found = stored.get("_class_name") if isinstance(stored, dict) else None
        raise UsageError(f"{folder} holds {found or 'no model'}; expected a folder of {wanted} as save_pretrained writes it")
    return stored


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files: the only one, or those that its index lists.

    Raises:
        UsageError: the index cannot be read.
    """
    index = folder / f"{WEIGHTS}.index.json"
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values())) if index.is_file() else [WEIGHTS]
        return [folder / Path(name).name for name in names]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unreadable(folder, error) from error


def _unreadable(folder: Path, error: Exception) -> UsageError:
    return UsageError(f"{folder}: its weights cannot be read ({error}); expected {WEIGHTS}, or {WEIGHTS}.index.json and its parts")


def _constructed(
    model: DiffusionModel, config: Mapping[str, Any], *, device: torch.device, dtype: torch.dtype, from_config: bool = False
) -> Any:
    """The transformer with whatever weights its constructor leaves, each in the type that diffusers' loading gives it."""
    import torch

    with _default_dtype(dtype), torch.device(device):
        transformer = model.transformer.from_config(config) if from_config else model.transformer(**config)
    keep = tuple(model.transformer._keep_in_fp32_modules or ())
    for name, parameter in transformer.named_parameters():
        if any(part in name.split(".") for part in keep):  # as from_pretrained chooses them
            parameter.data = parameter.data.float()
    return transformer


def _require_configuration(model: DiffusionModel, folder: Path, stored: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Refuse weights of another configuration, whose shapes and calls would not be the model's."""
    for key, wanted in config.items():
        found = stored.get(key, wanted)
        if key in model.stacks:
            if not isinstance(found, int) or found < wanted:
                raise UsageError(f"{folder}: its model has {found} {key}, and {wanted} are to run; use --layers")
        elif _plain(found) != _plain(wanted):
            raise UsageError(f"{folder}: its model has {key}={found!r}, but {model.title} has {wanted!r}")


def _plain(value: Any) -> Any:
    return [_plain(one) for one in value] if isinstance(value, (tuple, list)) else value


def _stored_tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and weights of the folder's safetensors files.

    Raises:
        UsageError: there are none, or one cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        for name in weight_files(folder):
            with safe_open(name, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118  it is no mapping
                    yield key, file.get_tensor(key)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        if isinstance(error, UsageError):
            raise
        raise _unreadable(folder, error) from error


def _is_beyond(name: str, model: DiffusionModel, config: Mapping[str, Any]) -> bool:
    """Whether a weight is of a block that a reduced stack leaves out."""
    for stack, attribute in model.stacks.items():
        number = name.removeprefix(f"{attribute}.").partition(".")[0]
        if name.startswith(f"{attribute}.") and number.isdigit():
            return int(number) >= int(config[stack])
    return False


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
