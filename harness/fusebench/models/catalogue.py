"""The model configurations by name.  A configuration imports diffusers, so it is loaded only when it is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ..errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from .diffusion_model import DiffusionModel

MODELS = {
    "flux1_dev": "flux1:Flux1Dev",
    "flux2_dev": "flux2:Flux2Dev",
    "qwen_image": "qwen_image:QwenImage",
    "qwen_image_edit_2511": "qwen_image:QwenImageEdit",
    "z_image_turbo": "z_image:ZImageTurbo",
    "wan2_1_t2v_1_3b": "wan:Wan21T2V1B",
    "wan2_1_t2v_14b": "wan:Wan21T2V14B",
    "wan2_2_ti2v_5b": "wan:Wan22TI2V5B",
    "hunyuan_video": "hunyuan_video:HunyuanVideo",
}
"""`module:class` in `configurations`, by name.  A configuration's suite is `models/NAME`."""

TRANSFORMERS = {
    "FluxTransformer2DModel": ("flux1_dev",),
    "Flux2Transformer2DModel": ("flux2_dev",),
    "QwenImageTransformer2DModel": ("qwen_image", "qwen_image_edit_2511"),
    "ZImageTransformer2DModel": ("z_image_turbo",),
    "WanTransformer3DModel": ("wan2_1_t2v_1_3b",),
    "HunyuanVideoTransformer3DModel": ("hunyuan_video",),
}
"""Configurations whose substitution serves a transformer, by the name of its class: each suits some constructor arguments."""


def load_model(name: str) -> DiffusionModel:
    """The configuration of one model.

    Raises:
        UnknownNameError: no such model.
        UsageError: diffusers is not installed, or lacks a class that the configuration needs.
    """
    if name not in MODELS:
        raise UnknownNameError("model", name, MODELS)
    module, _, kind = MODELS[name].partition(":")
    try:
        found = importlib.import_module(f".configurations.{module}", __package__)
    except ImportError as error:
        raise UsageError(f"model {name!r} needs diffusers: {error}; install it with pip install 'fusebench[models]'") from error
    model: DiffusionModel = getattr(found, kind)()
    return model
