"""FLUX.2-dev: 8 double-stream and 48 single-stream blocks; all blocks of a kind share one modulation, made outside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, Flux2Transformer2DModel
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.normalization import AdaLayerNormContinuous
from diffusers.models.transformers.transformer_flux2 import (
    Flux2Attention,
    Flux2AttnProcessor,
    Flux2Modulation,
    Flux2ParallelSelfAttention,
    Flux2ParallelSelfAttnProcessor,
    Flux2PosEmbed,
    Flux2SingleTransformerBlock,
    Flux2SwiGLU,
    Flux2TransformerBlock,
)

from ..diffusion_model import Conditioning, DiffusionModel, Shapes, Site
from ..op_calls import OpCalls, SiteOp
from ..silu_product import SILU_PRODUCT
from ..substitution import Substitution
from .feed_forward import product_of_both
from .norms import FusedNormContinuous
from .rotary import RotaryTable, from_real_pairs, rotate
from .streams import pack_projections, project

MOST_TOKENS = 65536
"""Most tokens of text and image together; 512 KiB of positions, made once.  The op refuses a longer row of tokens."""
TOKEN_PIXELS = 16
"""Pixels per token along each side: 8 per latent by the autoencoder, two latents per token."""
GUIDANCE_SCALE = 4.0
"""The pipeline's default.  The model embeds it, so that one forward does."""

IMAGE_QK = Site(name="double block: image q and k", op="qknorm_rope", stack="num_layers")
TEXT_QK = Site(name="double block: text q and k", op="qknorm_rope", stack="num_layers")
JOINT_QK = Site(name="single block: q and k", op="qknorm_rope", stack="num_single_layers")
IMAGE_NORM = Site(name="double block: norm1 of the image", op="norm_scale_shift", stack="num_layers")
TEXT_NORM = Site(name="double block: norm1 of the text", op="norm_scale_shift", stack="num_layers")
JOINT_NORM = Site(name="single block: norm", op="norm_scale_shift", stack="num_single_layers")
OUTPUT_NORM = Site(name="output norm", op="norm_scale_shift")
IMAGE_RESIDUAL = Site(name="double block: image residual, norm2", op="residual_gate_norm_scale_shift", stack="num_layers")
TEXT_RESIDUAL = Site(name="double block: text residual, norm2", op="residual_gate_norm_scale_shift", stack="num_layers")

IMAGE_SWIGLU = Site(name="double block: image feed-forward, SwiGLU", op=SILU_PRODUCT, stack="num_layers")
TEXT_SWIGLU = Site(name="double block: text feed-forward, SwiGLU", op=SILU_PRODUCT, stack="num_layers")
JOINT_SWIGLU = Site(name="single block: feed-forward, SwiGLU", op=SILU_PRODUCT, stack="num_single_layers")


class FusedSwiGLU(Flux2SwiGLU):
    """The activation of a feed-forward in one launch, on the halves of the projection's rows where they lie."""

    fused: SiteOp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        made: torch.Tensor = self.fused(x[..., :half], x[..., half:])
        return made


class FusedPosEmbed(Flux2PosEmbed):
    """Rows of the rotary table in the op's form, made once per forward.  The model joins the text's with the image's, in both places."""

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cache = from_real_pairs(*super().forward(ids)).cache
        return cache, cache[:, :0]


class FusedAttnProcessor(Flux2AttnProcessor):
    """Norm and rotation of q and k in one launch per stream, in place in the joint tensors of text and image.

    Args:
        image: op of the image's q and k.
        text: op of the text's q and k.
        positions: `[MOST_TOKENS]`, each its own index.
    """

    def __init__(self, image: SiteOp, text: SiteOp, positions: torch.Tensor) -> None:
        super().__init__()
        self._image, self._text, self._positions = image, text, positions

    def __call__(
        self,
        attn: Flux2Attention,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        table, text = RotaryTable(image_rotary_emb[0], self._positions), encoder_hidden_states.shape[1]  # type: ignore[index]
        of_text = (encoder_hidden_states, (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj))
        projected = project((of_text, (hidden_states, (attn.to_q, attn.to_k, attn.to_v))), attn.head_dim, packed=self._image.takes_packed)
        (text_query, text_key, _), (image_query, image_key, _) = projected.streams
        rotate(self._image, image_query, image_key, attn.norm_q, attn.norm_k, table, offset=text)
        rotate(self._text, text_query, text_key, attn.norm_added_q, attn.norm_added_k, table)
        query, key, value = projected.joined()
        joined = dispatch_attention_fn(query, key, value, attn_mask=attention_mask, backend=self._attention_backend).flatten(2, 3)
        return attn.to_out[1](attn.to_out[0](joined[:, text:])), attn.to_add_out(joined[:, :text])


class FusedParallelAttnProcessor(Flux2ParallelSelfAttnProcessor):
    """Norm and rotation of q and k in one launch, in place, where the projection left them: strided, beside v and the feed-forward's input.

    Args:
        joint: op of q and k.
        positions: `[MOST_TOKENS]`, each its own index.
    """

    def __init__(self, joint: SiteOp, positions: torch.Tensor) -> None:
        super().__init__()
        self._joint, self._positions = joint, positions

    def __call__(
        self,
        attn: Flux2ParallelSelfAttention,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        widths = [attn.inner_dim] * 3 + [attn.mlp_hidden_dim * attn.mlp_mult_factor]
        *heads, fed = attn.to_qkv_mlp_proj(hidden_states).split(widths, dim=-1)
        query, key, value = (each.unflatten(-1, (-1, attn.head_dim)) for each in heads)
        table = RotaryTable(image_rotary_emb[0], self._positions)  # type: ignore[index]
        rotate(self._joint, query, key, attn.norm_q, attn.norm_k, table)
        attended = dispatch_attention_fn(query, key, value, attn_mask=attention_mask, backend=self._attention_backend).flatten(2, 3)
        return product_of_both(attn.to_out, attended, attn.mlp_act_fn(fed))


class FusedDoubleBlock(Flux2TransformerBlock):
    """A double-stream block: first norm and modulation, then gated residual, second norm and modulation, a launch each and per stream."""

    image_norm: SiteOp
    text_norm: SiteOp
    image_residual: SiteOp
    text_residual: SiteOp

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        temb_mod_img: torch.Tensor,
        temb_mod_txt: torch.Tensor,
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
        joint_attention_kwargs: dict[str, Any] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        (shift, scale, image_gate), of_image = Flux2Modulation.split(temb_mod_img, 2)
        image = self.image_norm(hidden_states, None, None, scale, shift, eps=self.norm1.eps, norm="layer")
        (shift, scale, text_gate), of_text = Flux2Modulation.split(temb_mod_txt, 2)
        text = self.text_norm(encoder_hidden_states, None, None, scale, shift, eps=self.norm1_context.eps, norm="layer")
        image, text = self.attn(
            hidden_states=image, encoder_hidden_states=text, image_rotary_emb=image_rotary_emb, **(joint_attention_kwargs or {})
        )

        def feed_forward(
            op: SiteOp, layer: Any, eps: float, stream: torch.Tensor, attended: torch.Tensor, gate: torch.Tensor, modulation: Any
        ) -> torch.Tensor:
            shift, scale, gate_ff = modulation
            y, stream = op(stream, attended, gate, None, None, scale, shift, eps=eps, norm="layer")
            return stream + gate_ff * layer(y)

        hidden_states = feed_forward(self.image_residual, self.ff, self.norm2.eps, hidden_states, image, image_gate, of_image)
        encoder_hidden_states = feed_forward(
            self.text_residual, self.ff_context, self.norm2_context.eps, encoder_hidden_states, text, text_gate, of_text
        )
        if encoder_hidden_states.dtype == torch.float16:
            encoder_hidden_states = encoder_hidden_states.clip(-65504, 65504)
        return encoder_hidden_states, hidden_states


class FusedSingleBlock(Flux2SingleTransformerBlock):
    """A single-stream block, whose norm and modulation are one launch.  Text and image come joined, as the model gives them."""

    joint_norm: SiteOp

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None,
        temb_mod: torch.Tensor,
        image_rotary_emb: tuple[torch.Tensor, torch.Tensor] | None = None,
        joint_attention_kwargs: dict[str, Any] | None = None,
        split_hidden_states: bool = False,
        text_seq_len: int | None = None,
    ) -> torch.Tensor:
        ((shift, scale, gate),) = Flux2Modulation.split(temb_mod, 1)
        normed = self.joint_norm(hidden_states, None, None, scale, shift, eps=self.norm.eps, norm="layer")
        attended = self.attn(hidden_states=normed, image_rotary_emb=image_rotary_emb, **(joint_attention_kwargs or {}))
        hidden_states = hidden_states + gate * attended
        return hidden_states.clip(-65504, 65504) if hidden_states.dtype == torch.float16 else hidden_states


class Flux2Dev(DiffusionModel):
    """FLUX.2-dev at 1024 x 1024, one forward per step, 50 steps."""

    name = "flux2_dev"
    title = "FLUX.2-dev, 1024 x 1024"
    transformer = Flux2Transformer2DModel
    config = {
        "in_channels": 128,
        "num_layers": 8,
        "num_single_layers": 48,
        "num_attention_heads": 48,
        "attention_head_dim": 128,
        "joint_attention_dim": 15360,
        "mlp_ratio": 3.0,
        "axes_dims_rope": (32, 32, 32, 32),
        "rope_theta": 2000,
        "guidance_embeds": True,
    }
    tiny_config = {
        "in_channels": 16,
        "num_layers": 2,
        "num_single_layers": 2,
        "num_attention_heads": 2,
        "attention_head_dim": 64,
        "joint_attention_dim": 32,
        "axes_dims_rope": (16, 16, 16, 16),
    }
    stacks = {"num_layers": "transformer_blocks", "num_single_layers": "single_transformer_blocks"}
    shapes = Shapes(height=1024, width=1024, text_tokens=512)
    tiny_shapes = Shapes(height=128, width=96, text_tokens=6)
    steps = 50
    sites = (
        *(IMAGE_QK, TEXT_QK, JOINT_QK, IMAGE_NORM, TEXT_NORM, JOINT_NORM, OUTPUT_NORM, IMAGE_RESIDUAL, TEXT_RESIDUAL),
        *(IMAGE_SWIGLU, TEXT_SWIGLU, JOINT_SWIGLU),
    )
    forward_arguments = {
        Flux2PosEmbed: ("ids",),
        Flux2SwiGLU: ("x",),
        Flux2AttnProcessor: ("attn", "hidden_states", "encoder_hidden_states", "attention_mask", "image_rotary_emb"),
        Flux2ParallelSelfAttnProcessor: ("attn", "hidden_states", "attention_mask", "image_rotary_emb"),
        AdaLayerNormContinuous: ("x", "conditioning_embedding"),
        Flux2TransformerBlock: (
            "hidden_states",
            "encoder_hidden_states",
            "temb_mod_img",
            "temb_mod_txt",
            "image_rotary_emb",
            "joint_attention_kwargs",
        ),
        Flux2SingleTransformerBlock: (
            "hidden_states",
            "encoder_hidden_states",
            "temb_mod",
            "image_rotary_emb",
            "joint_attention_kwargs",
            "split_hidden_states",
            "text_seq_len",
        ),
    }

    def latents(self, shapes: Shapes, config: Mapping[str, Any], *, generator: torch.Generator) -> torch.Tensor:
        rows, columns = _tokens(shapes)
        return torch.randn(1, rows * columns, config["in_channels"], generator=generator, device=generator.device)

    def conditioning(self, shapes: Shapes, config: Mapping[str, Any], *, dtype: torch.dtype, generator: torch.Generator) -> Conditioning:
        device = generator.device
        rows, columns = _tokens(shapes)
        # Time, row, column, and place in the text.
        image = torch.zeros(rows, columns, 4, dtype=torch.int64, device=device)
        image[..., 1] = torch.arange(rows, device=device)[:, None]
        image[..., 2] = torch.arange(columns, device=device)
        text = torch.zeros(shapes.text_tokens, 4, dtype=torch.int64, device=device)
        text[:, 3] = torch.arange(shapes.text_tokens, device=device)
        embeddings = (1, shapes.text_tokens, config["joint_attention_dim"])
        return {
            "encoder_hidden_states": torch.randn(embeddings, generator=generator, device=device).to(dtype),
            "guidance": torch.full((1,), GUIDANCE_SCALE, device=device),
            "img_ids": image.flatten(0, 1)[None],
            "txt_ids": text[None],
        }

    def predict(self, transformer: Any, latents: torch.Tensor, timestep: torch.Tensor, conditioning: Conditioning) -> torch.Tensor:
        given = latents.to(conditioning["encoder_hidden_states"].dtype)  # the pipeline's latents have this dtype
        found = transformer(hidden_states=given, timestep=timestep.expand(1).to(given.dtype) / 1000, return_dict=False, **conditioning)
        predicted: torch.Tensor = found[0]
        return predicted

    def scheduler(self, shapes: Shapes, config: Mapping[str, Any], steps: int, *, device: torch.device) -> Any:
        """Settings: those of FLUX.1-dev, which diffusers' scripts/convert_flux2_to_diffusers.py takes over; the rest: its Flux2Pipeline."""
        rows, columns = _tokens(shapes)
        made = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0)
        made.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps).tolist(), device=device, mu=_shift(rows * columns, steps))
        return made

    def arrange(self, transformer: Any) -> None:
        pack_projections(transformer)

    def substitute(self, transformer: Any, calls: OpCalls, into: Substitution) -> None:
        def at(site: Site, module: Any) -> SiteOp:
            return calls.at(site.op, site.name, into.place(module))

        positions = torch.arange(MOST_TOKENS, device=transformer.proj_out.weight.device)
        into.swap(transformer.pos_embed, FusedPosEmbed)
        for block in transformer.transformer_blocks:
            into.set_processor(block.attn, FusedAttnProcessor(at(IMAGE_QK, block.attn), at(TEXT_QK, block.attn), positions))
            into.swap(
                block,
                FusedDoubleBlock,
                image_norm=at(IMAGE_NORM, block.norm1),
                text_norm=at(TEXT_NORM, block.norm1_context),
                image_residual=at(IMAGE_RESIDUAL, block.norm2),
                text_residual=at(TEXT_RESIDUAL, block.norm2_context),
            )
            into.swap(block.ff.act_fn, FusedSwiGLU, fused=at(IMAGE_SWIGLU, block.ff))
            into.swap(block.ff_context.act_fn, FusedSwiGLU, fused=at(TEXT_SWIGLU, block.ff_context))
        for block in transformer.single_transformer_blocks:
            into.set_processor(block.attn, FusedParallelAttnProcessor(at(JOINT_QK, block.attn), positions))
            into.swap(block.attn.mlp_act_fn, FusedSwiGLU, fused=at(JOINT_SWIGLU, block.attn))
            into.swap(block, FusedSingleBlock, joint_norm=at(JOINT_NORM, block.norm))
        into.swap(transformer.norm_out, FusedNormContinuous, fused=at(OUTPUT_NORM, transformer.norm_out))


def _tokens(shapes: Shapes) -> tuple[int, int]:
    """Rows and columns of image tokens."""
    return shapes.height // TOKEN_PIXELS, shapes.width // TOKEN_PIXELS


def _shift(tokens: int, steps: int) -> float:
    """The pipeline's shift of the noise levels, by its authors' fits at 10 and at 200 steps: linear in the tokens, and in the steps between
    them.  Above 4300 tokens the fit at 200 steps holds for all."""
    at_200 = 0.00016927 * tokens + 0.45666666
    at_10 = 8.73809524e-05 * tokens + 1.89833333
    return at_200 if tokens > 4300 else at_10 + (at_200 - at_10) * (steps - 10) / 190
