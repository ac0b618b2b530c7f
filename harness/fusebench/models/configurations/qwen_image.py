"""Qwen-Image and Qwen-Image-Edit-2511: 60 double-stream blocks, two forwards per denoise step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel
from diffusers.models.activations import GELU
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.attention_processor import Attention
from diffusers.models.normalization import AdaLayerNormContinuous
from diffusers.models.transformers.transformer_qwenimage import (
    QwenDoubleStreamAttnProcessor2_0,
    QwenEmbedRope,
    QwenImageTransformerBlock,
)

from ..diffusion_model import Conditioning, DiffusionModel, Shapes, Site
from ..linear_gelu import LINEAR_GELU
from ..op_calls import OpCalls, SiteOp
from ..substitution import Substitution
from .feed_forward import FusedGelu
from .modulations import Embedding, Modulation, Plan, making_ahead
from .norms import FusedNormContinuous
from .rotary import RotaryTable, from_complex, rotate
from .streams import pack_projections, project

TOKEN_PIXELS = 16
"""Pixels per token along each side: 8 by the autoencoder, 2 by the patches."""
GUIDANCE = 4.0
"""Scale of the guidance that the model's authors recommend."""

IMAGE_QK = Site(name="block: image q and k", op="qknorm_rope", stack="num_layers")
TEXT_QK = Site(name="block: text q and k", op="qknorm_rope", stack="num_layers")
IMAGE_NORM = Site(name="block: norm1 of the image", op="norm_scale_shift", stack="num_layers")
TEXT_NORM = Site(name="block: norm1 of the text", op="norm_scale_shift", stack="num_layers")
OUTPUT_NORM = Site(name="output norm", op="norm_scale_shift")
IMAGE_RESIDUAL = Site(name="block: image residual, norm2", op="residual_gate_norm_scale_shift", stack="num_layers")
TEXT_RESIDUAL = Site(name="block: text residual, norm2", op="residual_gate_norm_scale_shift", stack="num_layers")
TWO_WAY_NORM = Site(name="block: norm1 of the image", op="norm_scale_shift_gate_select01", stack="num_layers")
TWO_WAY_RESIDUAL = Site(name="block: image residual, norm2", op="residual_norm_scale_shift_gate_select01", stack="num_layers")

IMAGE_GELU = Site(name="block: image feed-forward, GELU", op=LINEAR_GELU, stack="num_layers")
TEXT_GELU = Site(name="block: text feed-forward, GELU", op=LINEAR_GELU, stack="num_layers")


class FusedEmbedRope(QwenEmbedRope):
    """The rotary tables of image and text in the ops' form, made once per forward."""

    def forward(
        self, video_fhw: Any, device: torch.device | None = None, max_txt_seq_len: int | None = None
    ) -> tuple[RotaryTable, RotaryTable]:
        image, text = super().forward(video_fhw, device=device, max_txt_seq_len=max_txt_seq_len)
        return from_complex(image), from_complex(text)


class FusedAttnProcessor(QwenDoubleStreamAttnProcessor2_0):
    """Norm and rotation of q and k in one launch per stream, in place in the joint tensors of text and image."""

    def __init__(self, image: SiteOp, text: SiteOp) -> None:
        super().__init__()
        self._image, self._text = image, text

    def __call__(
        self,
        attn: Attention,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_hidden_states_mask: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: tuple[RotaryTable, RotaryTable] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        text = encoder_hidden_states.shape[1]
        if encoder_hidden_states_mask is not None:
            of_image = encoder_hidden_states_mask.new_ones(hidden_states.shape[:2])
            attention_mask = torch.cat([encoder_hidden_states_mask, of_image], dim=1)[:, None, None, :]
        head_dim = attn.inner_dim // attn.heads
        of_text = (encoder_hidden_states, (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj))
        projected = project((of_text, (hidden_states, (attn.to_q, attn.to_k, attn.to_v))), head_dim, packed=self._image.takes_packed)
        (text_query, text_key, _), (image_query, image_key, _) = projected.streams
        if image_rotary_emb is None:
            raise ValueError("Qwen-Image's attention has no rotary tables; expected those of its `pos_embed`")
        image_table, text_table = image_rotary_emb
        rotate(self._image, image_query, image_key, attn.norm_q, attn.norm_k, image_table)
        rotate(self._text, text_query, text_key, attn.norm_added_q, attn.norm_added_k, text_table)
        query, key, value = projected.joined()
        joined = dispatch_attention_fn(query, key, value, attn_mask=attention_mask, backend=self._attention_backend).flatten(2, 3)
        return attn.to_out[1](attn.to_out[0](joined[:, text:])), attn.to_add_out(joined[:, :text])


class FusedBlock(QwenImageTransformerBlock):
    """A double-stream block: one launch per stream for its first norm, one for the gated residual and the second norm."""

    image_norm: SiteOp
    image_residual: SiteOp
    text_norm: SiteOp
    text_residual: SiteOp

    def __call__(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_hidden_states_mask: torch.Tensor | None,
        temb: Embedding,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        modulations = temb.of(self.img_mod[1]), temb.of(self.txt_mod[1])
        return super().__call__(hidden_states, encoder_hidden_states, encoder_hidden_states_mask, modulations, *args, **kwargs)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_hidden_states_mask: torch.Tensor | None,
        temb: tuple[Modulation, Modulation],
        image_rotary_emb: tuple[RotaryTable, RotaryTable] | None = None,
        joint_attention_kwargs: dict[str, Any] | None = None,
        modulate_index: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        (of_image, of_image_mlp), (of_text, of_text_mlp) = (modulation.rows.chunk(2, dim=-1) for modulation in temb)
        image, image_gate = _norm(self.image_norm, self.img_norm1.eps, hidden_states, of_image, modulate_index)
        text, text_gate = _norm(self.text_norm, self.txt_norm1.eps, encoder_hidden_states, of_text, None)
        image, text = self.attn(
            hidden_states=image,
            encoder_hidden_states=text,
            encoder_hidden_states_mask=encoder_hidden_states_mask,
            image_rotary_emb=image_rotary_emb,
            **(joint_attention_kwargs or {}),
        )
        image, hidden_states, image_gate = _residual(
            self.image_residual, self.img_norm2.eps, hidden_states, image, image_gate, of_image_mlp, modulate_index
        )
        text, encoder_hidden_states, text_gate = _residual(
            self.text_residual, self.txt_norm2.eps, encoder_hidden_states, text, text_gate, of_text_mlp, None
        )
        hidden_states = hidden_states + image_gate * self.img_mlp(image)
        encoder_hidden_states = encoder_hidden_states + text_gate * self.txt_mlp(text)
        if hidden_states.dtype == torch.float16:
            hidden_states, encoder_hidden_states = (each.clip(-65504, 65504) for each in (hidden_states, encoder_hidden_states))
        return encoder_hidden_states, hidden_states


def _norm(op: SiteOp, eps: float, x: torch.Tensor, modulation: torch.Tensor, index: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """The modulated norm and its gate.

    Args:
        modulation: shift, scale and gate side by side: `[B, 3 D]`, with an index `[2 B, 3 D]`.
        index: `[B, S]`, picks the first or the second half of the modulation's rows for each token.
    """
    if index is not None:
        y, gate = op(x, None, None, *_row_sets(modulation), index, eps=eps)
    else:
        shift, scale, gate = modulation[:, None].chunk(3, dim=-1)
        y = op(x, None, None, scale, shift, eps=eps, norm="layer")
    return y, gate


def _residual(
    op: SiteOp,
    eps: float,
    residual: torch.Tensor,
    x: torch.Tensor,
    residual_gate: torch.Tensor,
    modulation: torch.Tensor,
    index: torch.Tensor | None,
) -> tuple[torch.Tensor, ...]:
    """The modulated norm of `residual + residual_gate * x`, that sum, and the next gate; the arguments are as in `_norm`.

    The two-way op takes its statistics of the sum before it is rounded, the model after: their bits differ, the op's error is smaller.
    """
    if index is not None:
        y, summed, gate = op(residual, x, residual_gate, None, None, *_row_sets(modulation), index, eps=eps)
    else:
        shift, scale, gate = modulation[:, None].chunk(3, dim=-1)
        y, summed = op(residual, x, residual_gate, None, None, scale, shift, eps=eps, norm="layer")
    return y, summed, gate


def _row_sets(modulation: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """scale0, shift0, gate0, scale1, shift1 and gate1, each a view `[B, D]` of `[2 B, 3 D]`."""
    sets = (rows.chunk(3, dim=-1) for rows in modulation.chunk(2, dim=0))
    return tuple(each for shift, scale, gate in sets for each in (scale, shift, gate))


class QwenImage(DiffusionModel):
    """Qwen-Image at 1024 x 1024 with classifier-free guidance, 50 steps.

    Prompts have 6 to 200 text tokens: the longest for the prompt, the shortest for the negative prompt.
    """

    name = "qwen_image"
    title = "Qwen-Image, 1024 x 1024"
    transformer = QwenImageTransformer2DModel
    config = {
        "patch_size": 2,
        "in_channels": 64,
        "out_channels": 16,
        "num_layers": 60,
        "attention_head_dim": 128,
        "num_attention_heads": 24,
        "joint_attention_dim": 3584,
        "axes_dims_rope": (16, 56, 56),
    }
    tiny_config = {
        "num_layers": 2,
        "num_attention_heads": 2,
        "attention_head_dim": 64,
        "joint_attention_dim": 32,
        "axes_dims_rope": (16, 24, 24),
    }
    stacks = {"num_layers": "transformer_blocks"}
    shapes = Shapes(height=1024, width=1024, text_tokens=200, negative_text_tokens=6)
    tiny_shapes = Shapes(height=128, width=96, text_tokens=7, negative_text_tokens=3)
    steps = 50
    forwards = 2
    image_norm, image_residual = IMAGE_NORM, IMAGE_RESIDUAL
    sites = (IMAGE_QK, TEXT_QK, IMAGE_NORM, TEXT_NORM, OUTPUT_NORM, IMAGE_RESIDUAL, TEXT_RESIDUAL, IMAGE_GELU, TEXT_GELU)
    forward_arguments = {
        GELU: ("hidden_states",),
        QwenEmbedRope: ("video_fhw", "device", "max_txt_seq_len"),
        QwenDoubleStreamAttnProcessor2_0: (
            "attn",
            "hidden_states",
            "encoder_hidden_states",
            "encoder_hidden_states_mask",
            "attention_mask",
            "image_rotary_emb",
        ),
        QwenImageTransformerBlock: (
            "hidden_states",
            "encoder_hidden_states",
            "encoder_hidden_states_mask",
            "temb",
            "image_rotary_emb",
            "joint_attention_kwargs",
            "modulate_index",
        ),
        AdaLayerNormContinuous: ("x", "conditioning_embedding"),
    }

    def reason_not_for(self, config: Mapping[str, Any]) -> str:
        two_way, found = bool(self.config.get("zero_cond_t")), bool(config.get("zero_cond_t"))
        return "" if found == two_way else f"zero_cond_t={found}, expected {two_way}"

    def latents(self, shapes: Shapes, config: Mapping[str, Any], *, generator: torch.Generator) -> torch.Tensor:
        rows, columns = _tokens(shapes.height, shapes.width)
        return torch.randn(1, rows * columns, config["in_channels"], generator=generator, device=generator.device)

    def conditioning(self, shapes: Shapes, config: Mapping[str, Any], *, dtype: torch.dtype, generator: torch.Generator) -> Conditioning:
        def random(*shape: int) -> torch.Tensor:
            return torch.randn(1, *shape, generator=generator, device=generator.device).to(dtype)

        images = [_tokens(shapes.height, shapes.width)]
        made: dict[str, Any] = {
            "prompt": random(shapes.text_tokens, config["joint_attention_dim"]),
            "negative_prompt": random(shapes.negative_text_tokens, config["joint_attention_dim"]),
        }
        if shapes.reference is not None:
            rows, columns = _tokens(*shapes.reference)
            images.append((rows, columns))
            made["reference"] = random(rows * columns, config["in_channels"])
        return made | {"img_shapes": [[(1, rows, columns) for rows, columns in images]]}

    def predict(self, transformer: Any, latents: torch.Tensor, timestep: torch.Tensor, conditioning: Conditioning) -> torch.Tensor:
        images = [latents, conditioning["reference"]] if "reference" in conditioning else [latents]

        def forward(text: torch.Tensor) -> torch.Tensor:
            found = transformer(
                hidden_states=torch.cat(images, dim=1),
                timestep=timestep.expand(1).to(latents.dtype) / 1000,
                encoder_hidden_states=text,
                img_shapes=conditioning["img_shapes"],
                return_dict=False,
            )
            of_noise: torch.Tensor = found[0][:, : latents.shape[1]]
            return of_noise

        prompted, unprompted = forward(conditioning["prompt"]), forward(conditioning["negative_prompt"])
        guided = unprompted + GUIDANCE * (prompted - unprompted)
        return guided * (torch.norm(prompted, dim=-1, keepdim=True) / torch.norm(guided, dim=-1, keepdim=True))

    def scheduler(self, shapes: Shapes, config: Mapping[str, Any], steps: int, *, device: torch.device) -> Any:
        """Settings: scheduler/scheduler_config.json of Qwen/Qwen-Image, as of its edit models; the rest: diffusers' QwenImagePipeline."""
        rows, columns = _tokens(shapes.height, shapes.width)
        made = FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, base_image_seq_len=256, max_image_seq_len=8192, shift_terminal=0.02
        )
        # The pipeline's shift grows with the number of image tokens that are made: 0.5 at 256, 0.9 at 8192.
        mu = 0.5 + (rows * columns - 256) * (0.9 - 0.5) / (8192 - 256)
        made.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps).tolist(), device=device, mu=mu)
        return made

    def arrange(self, transformer: Any) -> None:
        pack_projections(transformer)

    def substitute(self, transformer: Any, calls: OpCalls, into: Substitution) -> None:
        def at(site: Site, module: Any) -> SiteOp:
            return calls.at(site.op, site.name, into.place(module))

        into.swap(transformer.pos_embed, FusedEmbedRope)
        layers = [[block.img_mod[1], block.txt_mod[1]] for block in transformer.transformer_blocks]
        of_half = [text for _, text in layers] if transformer.config.zero_cond_t else []
        if not of_half:  # otherwise the output norm takes a part of the embedding itself
            layers.append([transformer.norm_out.linear])
        into.swap(transformer.time_text_embed, making_ahead(type(transformer.time_text_embed)), plan=Plan(layers, of_half=of_half))
        for block in transformer.transformer_blocks:
            into.set_processor(block.attn, FusedAttnProcessor(at(IMAGE_QK, block.attn), at(TEXT_QK, block.attn)))
            into.swap(
                block,
                FusedBlock,
                image_norm=at(self.image_norm, block),
                image_residual=at(self.image_residual, block),
                text_norm=at(TEXT_NORM, block),
                text_residual=at(TEXT_RESIDUAL, block),
            )
            into.swap(block.img_mlp.net[0], FusedGelu, fused=at(IMAGE_GELU, block.img_mlp))
            into.swap(block.txt_mlp.net[0], FusedGelu, fused=at(TEXT_GELU, block.txt_mlp))
        into.swap(transformer.norm_out, FusedNormContinuous, fused=at(OUTPUT_NORM, transformer.norm_out))


class QwenImageEdit(QwenImage):
    """Qwen-Image-Edit-2511 at 1024 x 1024 with a reference image of 1248 x 864, 40 steps.

    The reference image's tokens follow the noise's, and are modulated as at timestep 0.  Both prompts hold the reference image's tokens of
    the text encoder, so the negative one is as long.
    """

    name = "qwen_image_edit_2511"
    title = "Qwen-Image-Edit-2511, 1024 x 1024"
    config = {**QwenImage.config, "zero_cond_t": True}
    shapes = Shapes(height=1024, width=1024, text_tokens=200, negative_text_tokens=200, reference=(864, 1248))
    tiny_shapes = Shapes(height=128, width=96, text_tokens=7, negative_text_tokens=7, reference=(96, 160))
    steps = 40
    image_norm, image_residual = TWO_WAY_NORM, TWO_WAY_RESIDUAL
    sites = (IMAGE_QK, TEXT_QK, TWO_WAY_NORM, TEXT_NORM, OUTPUT_NORM, TWO_WAY_RESIDUAL, TEXT_RESIDUAL, IMAGE_GELU, TEXT_GELU)


def _tokens(height: int, width: int) -> tuple[int, int]:
    """Rows and columns of an image's tokens."""
    return height // TOKEN_PIXELS, width // TOKEN_PIXELS
