"""FLUX.1-dev: 19 double-stream and 38 single-stream blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel
from diffusers.models.activations import GELU
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.normalization import AdaLayerNormContinuous, AdaLayerNormZero, AdaLayerNormZeroSingle
from diffusers.models.transformers.transformer_flux import (
    FluxAttention,
    FluxAttnProcessor,
    FluxPosEmbed,
    FluxSingleTransformerBlock,
    FluxTransformerBlock,
)

from ..diffusion_model import Conditioning, DiffusionModel, Shapes, Site
from ..linear_gelu import LINEAR_GELU
from ..op_calls import OpCalls, SiteOp
from ..substitution import Substitution
from .deferred_sum import (
    DeferredSum,
    FusedNormContinuousOfSum,
    FusedNormZeroOfSum,
    FusedNormZeroSingleOfSum,
    Stream,
    added,
    feed_forward,
    first_norm,
    joined,
    parted,
)
from .feed_forward import FusedGelu, product_of_both
from .modulations import Embedding, Modulation, Plan, making_ahead
from .norms import FusedNormContinuous, FusedNormZero, FusedNormZeroSingle
from .rotary import RotaryTable, from_real_pairs, rotate
from .streams import pack_projections, project

LATENT_PIXELS = 8
"""Pixels per latent along each side, by the autoencoder."""
PATCH = 2
"""Latents per token along each side."""

IMAGE_QK = Site(name="double block: image q and k", op="qknorm_rope", stack="num_layers")
TEXT_QK = Site(name="double block: text q and k", op="qknorm_rope", stack="num_layers")
JOINT_QK = Site(name="single block: q and k", op="qknorm_rope", stack="num_single_layers")
IMAGE_NORM = Site(name="first double block: norm1 of the image", op="norm_scale_shift")
TEXT_NORM = Site(name="first double block: norm1 of the text", op="norm_scale_shift")
JOINT_NORM = Site(name="first single block: norm", op="norm_scale_shift")
NEXT_IMAGE = Site(
    name="double block: image feed-forward residual, norm1 of the next", op="residual_gate_norm_scale_shift", stack="num_layers", beyond=-1
)
NEXT_TEXT = Site(
    name="double block: text feed-forward residual, norm1 of the next", op="residual_gate_norm_scale_shift", stack="num_layers", beyond=-1
)
NEXT_JOINT = Site(
    name="single block: residual, norm of the next", op="residual_gate_norm_scale_shift", stack="num_single_layers", beyond=-1
)
OUTPUT_NORM = Site(name="last single block: residual, output norm", op="residual_gate_norm_scale_shift")
OUTPUT_NORM_ALONE = Site(name="output norm", op="norm_scale_shift")
"""Of a float16 model, which has it in place of the one before."""
IMAGE_RESIDUAL = Site(name="double block: image residual, norm2", op="residual_gate_norm_scale_shift", stack="num_layers")
TEXT_RESIDUAL = Site(name="double block: text residual, norm2", op="residual_gate_norm_scale_shift", stack="num_layers")
IMAGE_GELU = Site(name="double block: image feed-forward, GELU", op=LINEAR_GELU, stack="num_layers")
TEXT_GELU = Site(name="double block: text feed-forward, GELU", op=LINEAR_GELU, stack="num_layers")
JOINT_GELU = Site(name="single block: feed-forward, GELU", op=LINEAR_GELU, stack="num_single_layers")


class FusedPosEmbed(FluxPosEmbed):
    """The rotary table in the ops' form, made once per forward."""

    def forward(self, ids: torch.Tensor) -> RotaryTable:
        return from_real_pairs(*super().forward(ids))


class FusedAttnProcessor(FluxAttnProcessor):
    """Norm and rotation of q and k in one launch per stream, in place in the joint tensors of text and image.

    Args:
        image: op of the image's q and k, or of all tokens' in a single-stream block.
        text: op of the text's q and k.
    """

    def __init__(self, image: SiteOp, text: SiteOp) -> None:
        super().__init__()
        self._image, self._text = image, text

    def __call__(
        self,
        attn: FluxAttention,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        image_rotary_emb: RotaryTable,
    ) -> Any:
        text = 0 if encoder_hidden_states is None else encoder_hidden_states.shape[1]
        streams = [(hidden_states, (attn.to_q, attn.to_k, attn.to_v))]
        if encoder_hidden_states is not None:
            streams = [(encoder_hidden_states, (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)), *streams]
        projected = project(streams, attn.head_dim, packed=self._image.takes_packed)
        image_query, image_key, _ = projected.streams[-1]
        rotate(self._image, image_query, image_key, attn.norm_q, attn.norm_k, image_rotary_emb, offset=text)
        if encoder_hidden_states is not None:
            text_query, text_key, _ = projected.streams[0]
            rotate(self._text, text_query, text_key, attn.norm_added_q, attn.norm_added_k, image_rotary_emb)
        query, key, value = projected.joined()
        joined = dispatch_attention_fn(query, key, value, attn_mask=attention_mask, backend=self._attention_backend).flatten(2, 3)
        if encoder_hidden_states is None:
            return joined
        of_text, of_image = joined[:, :text], joined[:, text:]
        return attn.to_out[1](attn.to_out[0](of_image)), attn.to_add_out(of_text)


class FusedDoubleBlock(FluxTransformerBlock):
    """A double-stream block whose gated residuals and norms are one launch per stream and norm; the last sum is left to the next block."""

    image_residual: SiteOp
    text_residual: SiteOp
    defers: bool

    def __call__(
        self, hidden_states: Stream, encoder_hidden_states: Stream, temb: Embedding, *args: Any, **kwargs: Any
    ) -> tuple[Stream, Stream]:
        modulations = temb.of(self.norm1.linear), temb.of(self.norm1_context.linear)
        made: tuple[Stream, Stream] = super().__call__(hidden_states, encoder_hidden_states, modulations, *args, **kwargs)
        return made

    def forward(
        self,
        hidden_states: Stream,
        encoder_hidden_states: Stream,
        temb: tuple[Modulation, Modulation],
        image_rotary_emb: RotaryTable,
        joint_attention_kwargs: dict[str, Any] | None = None,
    ) -> tuple[Stream, Stream]:
        image, image_stream, *of_image = first_norm(self.norm1, hidden_states, temb[0])
        text, text_stream, *of_text = first_norm(self.norm1_context, encoder_hidden_states, temb[1])
        image, text = self.attn(
            hidden_states=image, encoder_hidden_states=text, image_rotary_emb=image_rotary_emb, **(joint_attention_kwargs or {})
        )
        of_image_ff = feed_forward(self.image_residual, self.ff, self.norm2.eps, image_stream, image, of_image)
        of_text_ff = feed_forward(self.text_residual, self.ff_context, self.norm2_context.eps, text_stream, text, of_text)
        return (of_text_ff, of_image_ff) if self.defers else (clipped(of_text_ff), added(of_image_ff))


class FusedSingleBlock(FluxSingleTransformerBlock):
    """A single-stream block without concatenations: it finds text and image in one tensor where the block before left them.

    A compiled `forward` could not tell that, so `__call__`, which `Module.compile` leaves alone, joins and divides the tokens.  The sum at
    the end is left to the next block; what double-stream blocks leave is added here, since the two streams have gates of their own.
    """

    linear_gelu: SiteOp
    first: bool
    defers: bool

    def __call__(
        self, hidden_states: Stream, encoder_hidden_states: Stream, temb: Embedding, *args: Any, **kwargs: Any
    ) -> tuple[Stream, Stream]:
        if self.first:
            hidden_states, encoder_hidden_states = added(hidden_states), added(encoder_hidden_states)
        joint = super().__call__(joined(encoder_hidden_states, hidden_states), None, temb.of(self.norm.linear), *args, **kwargs)
        return parted(joint, encoder_hidden_states.shape[1])

    def forward(
        self,
        hidden_states: Stream,
        encoder_hidden_states: None,
        temb: Modulation,
        image_rotary_emb: RotaryTable,
        joint_attention_kwargs: dict[str, Any] | None = None,
    ) -> Stream:
        normed, residual, gate = first_norm(self.norm, hidden_states, temb)  # of text and image
        fed = self.linear_gelu(self.proj_mlp, normed)
        attended = self.attn(hidden_states=normed, image_rotary_emb=image_rotary_emb, **(joint_attention_kwargs or {}))
        made = DeferredSum(residual, gate[:, None], product_of_both(self.proj_out, attended, fed))
        return made if self.defers else clipped(made)


def clipped(stream: Stream) -> torch.Tensor:
    """The tokens, in float16 held to its range, as diffusers holds all of them but the image's of double-stream blocks."""
    tokens = added(stream)
    return tokens.clip(-65504, 65504) if tokens.dtype == torch.float16 else tokens


class Flux1Dev(DiffusionModel):
    """FLUX.1-dev at 1024 x 1024, one forward per step, 50 steps."""

    name = "flux1_dev"
    title = "FLUX.1-dev, 1024 x 1024"
    transformer = FluxTransformer2DModel
    config = {
        "in_channels": 64,
        "num_layers": 19,
        "num_single_layers": 38,
        "num_attention_heads": 24,
        "attention_head_dim": 128,
        "joint_attention_dim": 4096,
        "pooled_projection_dim": 768,
        "guidance_embeds": True,
        "axes_dims_rope": (16, 56, 56),
    }
    tiny_config = {
        "num_layers": 2,
        "num_single_layers": 2,
        "num_attention_heads": 2,
        "attention_head_dim": 64,
        "joint_attention_dim": 32,
        "pooled_projection_dim": 32,
        "axes_dims_rope": (16, 24, 24),
    }
    stacks = {"num_layers": "transformer_blocks", "num_single_layers": "single_transformer_blocks"}
    shapes = Shapes(height=1024, width=1024, text_tokens=512)
    tiny_shapes = Shapes(height=128, width=96, text_tokens=6)
    steps = 50
    sites = (
        *(IMAGE_QK, TEXT_QK, JOINT_QK, IMAGE_NORM, TEXT_NORM, JOINT_NORM, IMAGE_RESIDUAL, TEXT_RESIDUAL),
        *(NEXT_IMAGE, NEXT_TEXT, NEXT_JOINT, OUTPUT_NORM, IMAGE_GELU, TEXT_GELU, JOINT_GELU),
    )
    forward_arguments = {
        FluxPosEmbed: ("ids",),
        GELU: ("hidden_states",),
        FluxAttnProcessor: ("attn", "hidden_states", "encoder_hidden_states", "attention_mask", "image_rotary_emb"),
        AdaLayerNormZero: ("x", "timestep", "class_labels", "hidden_dtype", "emb"),
        AdaLayerNormZeroSingle: ("x", "emb"),
        AdaLayerNormContinuous: ("x", "conditioning_embedding"),
        FluxTransformerBlock: ("hidden_states", "encoder_hidden_states", "temb", "image_rotary_emb", "joint_attention_kwargs"),
        FluxSingleTransformerBlock: ("hidden_states", "encoder_hidden_states", "temb", "image_rotary_emb", "joint_attention_kwargs"),
    }

    def latents(self, shapes: Shapes, config: Mapping[str, Any], *, generator: torch.Generator) -> torch.Tensor:
        rows, columns = _tokens(shapes)
        channels = config["in_channels"]
        return torch.randn(1, rows * columns, channels, generator=generator, device=generator.device)

    def conditioning(self, shapes: Shapes, config: Mapping[str, Any], *, dtype: torch.dtype, generator: torch.Generator) -> Conditioning:
        device = generator.device
        rows, columns = _tokens(shapes)
        ids = torch.zeros(rows, columns, 3, device=device)
        ids[..., 1] = torch.arange(rows, device=device)[:, None]
        ids[..., 2] = torch.arange(columns, device=device)
        text = (1, shapes.text_tokens, config["joint_attention_dim"])
        pooled = (1, config["pooled_projection_dim"])
        return {
            "encoder_hidden_states": torch.randn(text, generator=generator, device=device).to(dtype),
            "pooled_projections": torch.randn(pooled, generator=generator, device=device).to(dtype),
            "guidance": torch.full((1,), 3.5, device=device),
            "txt_ids": torch.zeros(shapes.text_tokens, 3, device=device),
            "img_ids": ids.flatten(0, 1),
        }

    def predict(self, transformer: Any, latents: torch.Tensor, timestep: torch.Tensor, conditioning: Conditioning) -> torch.Tensor:
        found = transformer(hidden_states=latents, timestep=timestep.expand(1) / 1000, return_dict=False, **conditioning)
        return found[0]

    def scheduler(self, shapes: Shapes, config: Mapping[str, Any], steps: int, *, device: torch.device) -> Any:
        """Settings: scheduler/scheduler_config.json of black-forest-labs/FLUX.1-dev; sigmas and shift: diffusers' FluxPipeline."""
        rows, columns = _tokens(shapes)
        made = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0)
        # The pipeline's shift grows with the number of image tokens: 0.5 at 256, 1.15 at 4096.
        mu = 0.5 + (rows * columns - 256) * (1.15 - 0.5) / (4096 - 256)
        made.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps).tolist(), device=device, mu=mu)
        return made

    def arrange(self, transformer: Any) -> None:
        pack_projections(transformer)

    def substitute(self, transformer: Any, calls: OpCalls, into: Substitution) -> None:
        def at(site: Site, module: Any) -> SiteOp:
            return calls.at(site.op, site.name, into.place(module))

        # Sums in float16 are clipped before their norm, which no op does.
        defers = transformer.dtype != torch.float16

        def norm(module: Any, alone: type, site: Site, of_sum: type, next_site: Site, before: Any) -> None:
            """`alone` where no block stands before, or where it gives its sum; `of_sum` otherwise, named after that block."""
            deferred = defers and before is not None
            into.swap(module, of_sum if deferred else alone, fused=at(next_site, before) if deferred else at(site, module))

        into.swap(transformer.pos_embed, FusedPosEmbed)
        double, single = list(transformer.transformer_blocks), list(transformer.single_transformer_blocks)
        norms = [*((block.norm1, block.norm1_context) for block in double), *((block.norm,) for block in single), (transformer.norm_out,)]
        embedding = transformer.time_text_embed
        into.swap(embedding, making_ahead(type(embedding)), plan=Plan([[norm.linear for norm in each] for each in norms]))
        for before, block in zip([None, *double], double, strict=False):
            into.set_processor(block.attn, FusedAttnProcessor(at(IMAGE_QK, block.attn), at(TEXT_QK, block.attn)))
            norm(block.norm1, FusedNormZero, IMAGE_NORM, FusedNormZeroOfSum, NEXT_IMAGE, before)
            norm(block.norm1_context, FusedNormZero, TEXT_NORM, FusedNormZeroOfSum, NEXT_TEXT, before)
            residuals = {"image_residual": at(IMAGE_RESIDUAL, block), "text_residual": at(TEXT_RESIDUAL, block)}
            into.swap(block, FusedDoubleBlock, defers=defers, **residuals)
            into.swap(block.ff.net[0], FusedGelu, fused=at(IMAGE_GELU, block.ff))
            into.swap(block.ff_context.net[0], FusedGelu, fused=at(TEXT_GELU, block.ff_context))
        for before, block in zip([None, *single], single, strict=False):
            joint = at(JOINT_QK, block.attn)
            into.set_processor(block.attn, FusedAttnProcessor(joint, joint))
            norm(block.norm, FusedNormZeroSingle, JOINT_NORM, FusedNormZeroSingleOfSum, NEXT_JOINT, before)
            into.swap(block, FusedSingleBlock, linear_gelu=at(JOINT_GELU, block), first=before is None, defers=defers)
        norm(transformer.norm_out, FusedNormContinuous, OUTPUT_NORM_ALONE, FusedNormContinuousOfSum, OUTPUT_NORM, [*double, *single][-1])


def _tokens(shapes: Shapes) -> tuple[int, int]:
    """Rows and columns of image tokens."""
    side = LATENT_PIXELS * PATCH
    return shapes.height // side, shapes.width // side
