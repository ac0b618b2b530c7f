"""HunyuanVideo: 20 double-stream and 40 single-stream blocks, the text after the video's tokens and hidden by a mask where it is padding.

Text is normalised and not rotated: its rows of the rotary table hold cosine 1 and sine 0, by which a rotation leaves every bit as it is.
The refiner of the text tokens has norms with neither modulation nor rotation, and stays the model's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, HunyuanVideoTransformer3DModel
from diffusers.models.activations import GELU
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.attention_processor import Attention
from diffusers.models.normalization import AdaLayerNormContinuous, AdaLayerNormZero, AdaLayerNormZeroSingle
from diffusers.models.transformers.transformer_hunyuan_video import (
    HunyuanVideoAttnProcessor2_0,
    HunyuanVideoPatchEmbed,
    HunyuanVideoRotaryPosEmbed,
    HunyuanVideoSingleTransformerBlock,
    HunyuanVideoTransformerBlock,
)

from ...errors import UsageError
from ..diffusion_model import Conditioning, DiffusionModel, Shapes, Site
from ..linear_gelu import LINEAR_GELU
from ..op_calls import OpCalls, SiteOp
from ..substitution import Substitution
from .deferred_sum import added, feed_forward
from .feed_forward import FusedGelu, product_of_both
from .norms import FusedNormContinuous, FusedNormZero, FusedNormZeroSingle
from .rotary import RotaryTable, from_real_pairs, rotate
from .streams import pack_projections, project, side_by_side

LATENT_FRAMES = 4
"""Frames per latent frame after the first, by the autoencoder."""
LATENT_PIXELS = 8
"""Pixels per latent along each side, by the autoencoder."""
TEXT_ROWS = 256
"""Most text tokens: the pipeline's `max_sequence_length`."""
PROMPT_SHARE = 2
"""One in so many text tokens is the prompt's; the pipeline pads to 256 tokens and masks the padding."""
GUIDANCE_SCALE = 6.0
"""The pipeline's default.  The model embeds it, so that one forward does."""

IMAGE_QK = Site(name="double block: video q and k", op="qknorm_rope", stack="num_layers")
TEXT_QK = Site(name="double block: text q and k", op="qknorm_rope", stack="num_layers")
JOINT_QK = Site(name="single block: q and k", op="qknorm_rope", stack="num_single_layers")
IMAGE_NORM = Site(name="double block: norm1 of the video", op="norm_scale_shift", stack="num_layers")
TEXT_NORM = Site(name="double block: norm1 of the text", op="norm_scale_shift", stack="num_layers")
JOINT_NORM = Site(name="single block: norm", op="norm_scale_shift", stack="num_single_layers")
OUTPUT_NORM = Site(name="output norm", op="norm_scale_shift")
IMAGE_RESIDUAL = Site(name="double block: video residual, norm2", op="residual_gate_norm_scale_shift", stack="num_layers")
TEXT_RESIDUAL = Site(name="double block: text residual, norm2", op="residual_gate_norm_scale_shift", stack="num_layers")
IMAGE_GELU = Site(name="double block: video feed-forward, GELU", op=LINEAR_GELU, stack="num_layers")
TEXT_GELU = Site(name="double block: text feed-forward, GELU", op=LINEAR_GELU, stack="num_layers")
JOINT_GELU = Site(name="single block: feed-forward, GELU", op=LINEAR_GELU, stack="num_single_layers")


class FusedPatchEmbed(HunyuanVideoPatchEmbed):
    """The video's tokens in rows, once per forward.

    The model's own stream keeps the channels of its convolution outermost: every layer norm of a double-stream block copies it into rows.
    """

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden_states).contiguous()


class FusedRotaryPosEmbed(HunyuanVideoRotaryPosEmbed):
    """The rotary table in the op's form, made once per forward: a row per video token, then `TEXT_ROWS` rows that rotate by nothing."""

    def forward(self, hidden_states: torch.Tensor) -> RotaryTable:
        cos, sin = super().forward(hidden_states)
        rows = (TEXT_ROWS, cos.shape[1])
        return from_real_pairs(torch.cat([cos, cos.new_ones(rows)]), torch.cat([sin, sin.new_zeros(rows)]))


class FusedAttnProcessor(HunyuanVideoAttnProcessor2_0):
    """Norm of q and k, and rotation of the video's, in one launch per stream, in place in the joint tensors.

    Args:
        image: op of the video's q and k, or of all tokens' in a single-stream block.
        text: op of the text's q and k.
    """

    def __init__(self, image: SiteOp, text: SiteOp) -> None:
        super().__init__()
        self._image, self._text = image, text

    def __call__(
        self,
        attn: Attention,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        image_rotary_emb: RotaryTable,
    ) -> Any:
        tokens = hidden_states.shape[1]
        streams = [(hidden_states, (attn.to_q, attn.to_k, attn.to_v))]
        if encoder_hidden_states is not None:
            if encoder_hidden_states.shape[1] > TEXT_ROWS:
                found = encoder_hidden_states.shape[1]
                raise UsageError(f"hunyuan_video: {found} text tokens; expected {TEXT_ROWS} at most, as its pipeline gives")
            streams.append((encoder_hidden_states, (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)))
        projected = project(streams, attn.to_q.out_features // attn.heads, packed=self._image.takes_packed)
        query, key, _ = projected.streams[0]
        rotate(self._image, query, key, attn.norm_q, attn.norm_k, image_rotary_emb)
        if encoder_hidden_states is not None:
            query, key, _ = projected.streams[1]
            rotate(self._text, query, key, attn.norm_added_q, attn.norm_added_k, image_rotary_emb, offset=tokens)
        query, key, value = projected.joined()
        joined = dispatch_attention_fn(query, key, value, attn_mask=attention_mask, backend=self._attention_backend).flatten(2, 3)
        if encoder_hidden_states is None:
            return joined
        return attn.to_out[1](attn.to_out[0](joined[:, :tokens])), attn.to_add_out(joined[:, tokens:])


class FusedDoubleBlock(HunyuanVideoTransformerBlock):
    """A double-stream block whose gated residuals and second norms are one launch per stream."""

    image_residual: SiteOp
    text_residual: SiteOp

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        temb: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        freqs_cis: RotaryTable | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        image, *of_image = self.norm1(hidden_states, emb=temb)
        text, *of_text = self.norm1_context(encoder_hidden_states, emb=temb)
        image, text = self.attn(hidden_states=image, encoder_hidden_states=text, attention_mask=attention_mask, image_rotary_emb=freqs_cis)
        return (
            added(feed_forward(self.image_residual, self.ff, self.norm2.eps, hidden_states, image, of_image)),
            added(feed_forward(self.text_residual, self.ff_context, self.norm2_context.eps, encoder_hidden_states, text, of_text)),
        )


class FusedSingleBlock(HunyuanVideoSingleTransformerBlock):
    """A single-stream block without concatenations; see FLUX.1's."""

    linear_gelu: SiteOp

    def __call__(
        self, hidden_states: torch.Tensor, encoder_hidden_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        video = hidden_states.shape[1]
        joint = super().__call__(side_by_side(hidden_states, encoder_hidden_states), None, *args, **kwargs)
        return joint[:, :video], joint[:, video:]

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: None,
        temb: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: RotaryTable | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        normed, gate = self.norm(hidden_states, emb=temb)
        fed = self.linear_gelu(self.proj_mlp, normed)
        attended = self.attn(hidden_states=normed, attention_mask=attention_mask, image_rotary_emb=image_rotary_emb)
        return gate.unsqueeze(1) * product_of_both(self.proj_out, attended, fed) + hidden_states


class HunyuanVideo(DiffusionModel):
    """HunyuanVideo at 1280 x 720, 125 frames, one forward per step, 50 steps."""

    name = "hunyuan_video"
    title = "HunyuanVideo, 1280 x 720, 125 frames"
    transformer = HunyuanVideoTransformer3DModel
    config = {
        "in_channels": 16,
        "out_channels": 16,
        "num_layers": 20,
        "num_single_layers": 40,
        "num_refiner_layers": 2,
        "num_attention_heads": 24,
        "attention_head_dim": 128,
        "text_embed_dim": 4096,
        "pooled_projection_dim": 768,
        "guidance_embeds": True,
        "rope_theta": 256.0,
        "rope_axes_dim": (16, 56, 56),
    }
    tiny_config = {
        "num_layers": 2,
        "num_single_layers": 2,
        "num_attention_heads": 2,
        "attention_head_dim": 64,
        "text_embed_dim": 32,
        "pooled_projection_dim": 32,
        "rope_axes_dim": (16, 24, 24),
    }
    stacks = {"num_layers": "transformer_blocks", "num_single_layers": "single_transformer_blocks"}
    shapes = Shapes(height=720, width=1280, frames=125, text_tokens=256)
    tiny_shapes = Shapes(height=64, width=96, frames=9, text_tokens=12)
    steps = 50
    sites = (
        *(IMAGE_QK, TEXT_QK, JOINT_QK, IMAGE_NORM, TEXT_NORM, JOINT_NORM, OUTPUT_NORM, IMAGE_RESIDUAL, TEXT_RESIDUAL),
        *(IMAGE_GELU, TEXT_GELU, JOINT_GELU),
    )
    forward_arguments = {
        GELU: ("hidden_states",),
        HunyuanVideoPatchEmbed: ("hidden_states",),
        HunyuanVideoRotaryPosEmbed: ("hidden_states",),
        HunyuanVideoAttnProcessor2_0: ("attn", "hidden_states", "encoder_hidden_states", "attention_mask", "image_rotary_emb"),
        AdaLayerNormZero: ("x", "timestep", "class_labels", "hidden_dtype", "emb"),
        AdaLayerNormZeroSingle: ("x", "emb"),
        AdaLayerNormContinuous: ("x", "conditioning_embedding"),
        HunyuanVideoTransformerBlock: ("hidden_states", "encoder_hidden_states", "temb", "attention_mask", "freqs_cis"),
        HunyuanVideoSingleTransformerBlock: ("hidden_states", "encoder_hidden_states", "temb", "attention_mask", "image_rotary_emb"),
    }

    def latents(self, shapes: Shapes, config: Mapping[str, Any], *, generator: torch.Generator) -> torch.Tensor:
        frames = (shapes.frames - 1) // LATENT_FRAMES + 1
        sides = (shapes.height // LATENT_PIXELS, shapes.width // LATENT_PIXELS)
        return torch.randn(1, config["in_channels"], frames, *sides, generator=generator, device=generator.device)

    def conditioning(self, shapes: Shapes, config: Mapping[str, Any], *, dtype: torch.dtype, generator: torch.Generator) -> Conditioning:
        device = generator.device
        text = (1, shapes.text_tokens, config["text_embed_dim"])
        pooled = (1, config["pooled_projection_dim"])
        mask = torch.zeros(1, shapes.text_tokens, dtype=dtype, device=device)
        mask[:, : shapes.text_tokens // PROMPT_SHARE] = 1
        return {
            "encoder_hidden_states": torch.randn(text, generator=generator, device=device).to(dtype),
            "encoder_attention_mask": mask,
            "pooled_projections": torch.randn(pooled, generator=generator, device=device).to(dtype),
            "guidance": torch.full((1,), 1000 * GUIDANCE_SCALE, dtype=dtype, device=device),
        }

    def predict(self, transformer: Any, latents: torch.Tensor, timestep: torch.Tensor, conditioning: Conditioning) -> torch.Tensor:
        given = latents.to(conditioning["encoder_hidden_states"].dtype)
        predicted: torch.Tensor = transformer(hidden_states=given, timestep=timestep.expand(1).float(), return_dict=False, **conditioning)[
            0
        ]
        return predicted

    def scheduler(self, shapes: Shapes, config: Mapping[str, Any], steps: int, *, device: torch.device) -> Any:
        """Settings: scheduler/scheduler_config.json of hunyuanvideo-community/HunyuanVideo; sigmas: diffusers' HunyuanVideoPipeline."""
        made = FlowMatchEulerDiscreteScheduler(shift=7.0)
        made.set_timesteps(sigmas=np.linspace(1.0, 0.0, steps + 1)[:-1].tolist(), device=device)
        return made

    def arrange(self, transformer: Any) -> None:
        pack_projections(transformer)

    def substitute(self, transformer: Any, calls: OpCalls, into: Substitution) -> None:
        def at(site: Site, module: Any) -> SiteOp:
            return calls.at(site.op, site.name, into.place(module))

        into.swap(transformer.x_embedder, FusedPatchEmbed)
        into.swap(transformer.rope, FusedRotaryPosEmbed)
        for block in transformer.transformer_blocks:
            into.set_processor(block.attn, FusedAttnProcessor(at(IMAGE_QK, block.attn), at(TEXT_QK, block.attn)))
            into.swap(block.norm1, FusedNormZero, fused=at(IMAGE_NORM, block.norm1))
            into.swap(block.norm1_context, FusedNormZero, fused=at(TEXT_NORM, block.norm1_context))
            into.swap(block, FusedDoubleBlock, image_residual=at(IMAGE_RESIDUAL, block), text_residual=at(TEXT_RESIDUAL, block))
            into.swap(block.ff.net[0], FusedGelu, fused=at(IMAGE_GELU, block.ff))
            into.swap(block.ff_context.net[0], FusedGelu, fused=at(TEXT_GELU, block.ff_context))
        for block in transformer.single_transformer_blocks:
            joint = at(JOINT_QK, block.attn)
            into.set_processor(block.attn, FusedAttnProcessor(joint, joint))
            into.swap(block.norm, FusedNormZeroSingle, fused=at(JOINT_NORM, block.norm))
            into.swap(block, FusedSingleBlock, linear_gelu=at(JOINT_GELU, block))
        into.swap(transformer.norm_out, FusedNormContinuous, fused=at(OUTPUT_NORM, transformer.norm_out))
