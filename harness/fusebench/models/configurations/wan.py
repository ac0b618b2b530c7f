"""Wan: text to video by one stack of blocks, each of self-attention, cross-attention to the text, and feed-forward.

The model keeps scale, shift and gate in float32 and its blocks work in float32 between two roundings, as the ops do with float32
modulation.  So the tiny models give equal bits on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from diffusers import UniPCMultistepScheduler, WanTransformer3DModel
from diffusers.models.activations import GELU
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.models.transformers.transformer_wan import (
    WanAttention,
    WanAttnProcessor,
    WanRotaryPosEmbed,
    WanTransformerBlock,
)

from ..diffusion_model import Conditioning, DiffusionModel, Shapes, Site
from ..linear_gelu import LINEAR_GELU
from ..op_calls import OpCalls, SiteOp
from ..substitution import Substitution
from .feed_forward import FusedGelu

LATENT_FRAMES = 4
"""Frames per latent frame after the first, by the autoencoder."""
GUIDANCE_SCALE = 5.0
"""The pipeline's default."""
TEXT_SHARE = 4
"""One in so many text tokens is a prompt's; the pipeline pads its embeddings to 512 tokens with zeros, which no mask hides."""

FIRST_NORM = Site(name="first block: norm1", op="norm_scale_shift")
OUTPUT_NORM = Site(name="output norm", op="norm_scale_shift")
SELF_RESIDUAL = Site(name="block: self-attention residual, norm2", op="residual_gate_norm_scale_shift", stack="num_layers")
CROSS_RESIDUAL = Site(name="block: cross-attention residual, norm3", op="residual_gate_norm_scale_shift", stack="num_layers")
NEXT_RESIDUAL = Site(
    name="block: feed-forward residual, norm1 of the next", op="residual_gate_norm_scale_shift", stack="num_layers", beyond=-1
)
SELF_QK = Site(name="self-attention: q and k", op="qknorm_across_heads_rope", stack="num_layers")
FEED_FORWARD_GELU = Site(name="block: feed-forward, GELU", op=LINEAR_GELU, stack="num_layers")


class FusedRotaryPosEmbed(WanRotaryPosEmbed):
    """The rotary table in the op's form, made once per forward: `[T, R]` float32, cosines in its first half, sines in its last."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        cos, sin = super().forward(hidden_states)  # [1, T, 1, R], every value twice
        return torch.cat((cos[0, :, 0, ::2], sin[0, :, 0, ::2]), dim=-1).float()


class FusedAttnProcessor(WanAttnProcessor):
    """Self-attention that normalises q and k across all heads and rotates them in one launch, in place.

    Args:
        norm_rotate: op of q and k.
    """

    def __init__(self, norm_rotate: SiteOp) -> None:
        super().__init__()
        self._norm_rotate = norm_rotate

    def __call__(
        self,
        attn: WanAttention,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        rotary_emb: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if attn.fused_projections:  # the op takes views of packed rows as they are
            projections = attn.to_qkv(hidden_states).chunk(3, dim=-1)
        else:
            projections = (attn.to_q(hidden_states), attn.to_k(hidden_states), attn.to_v(hidden_states))
        query, key, value = (projected.unflatten(2, (attn.heads, -1)) for projected in projections)
        rows = (-1, *query.shape[2:])
        affine = (attn.norm_q.weight, attn.norm_k.weight)
        self._norm_rotate(query.view(rows), key.view(rows), *affine, rotary_emb, eps=attn.norm_q.eps)
        attended = dispatch_attention_fn(query, key, value, attn_mask=attention_mask, backend=self._attention_backend)
        return attn.to_out[1](attn.to_out[0](attended.flatten(2, 3)))


class FusedBlock(WanTransformerBlock):
    """A block whose residuals, gates, norms and modulations are one launch each.

    Its last residual is fused with the next block's first norm, so that it takes and returns a pair: the residual, and this residual
    normalised and modulated for the block that comes.  The first block takes the residual alone, and the last one returns it.
    """

    first_norm: SiteOp | None
    self_residual: SiteOp
    cross_residual: SiteOp
    next_residual: SiteOp | None
    next_table: torch.Tensor | None
    """`scale_shift_table [1, 6, D]` of the next block."""
    zero: torch.Tensor
    """`[1]`, float32: scale and shift of norm2, which has weights of its own and no modulation."""

    def forward(
        self,
        hidden_states: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        encoder_hidden_states: torch.Tensor,
        temb: torch.Tensor,
        rotary_emb: torch.Tensor,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        if self.first_norm is not None:
            stream: Any = hidden_states
            shift, scale = _modulation(self.scale_shift_table[:, :2], temb[..., :2, :], stream)
            normed = self.first_norm(stream, None, None, scale, shift, eps=self.norm1.eps, norm="layer")
        else:
            stream, normed = hidden_states
        gate_msa, shift_ff, scale_ff, gate_ff = _modulation(self.scale_shift_table[:, 2:], temb[..., 2:, :], stream)
        attended = self.attn1(normed, None, None, rotary_emb)
        affine = (self.norm2.weight, self.norm2.bias)
        normed, stream = self.self_residual(stream, attended, gate_msa, *affine, self.zero, self.zero, eps=self.norm2.eps, norm="layer")
        attended = self.attn2(normed, encoder_hidden_states, None, None)
        normed, stream = self.cross_residual(stream, attended, None, None, None, scale_ff, shift_ff, eps=self.norm3.eps, norm="layer")
        fed = self.ffn(normed)
        if self.next_residual is None:
            return _gated_sum(stream, gate_ff, fed)
        shift, scale = _modulation(self.next_table[:, :2], temb[..., :2, :], stream)  # type: ignore[index]
        normed, stream = self.next_residual(stream, fed, gate_ff, None, None, scale, shift, eps=self.norm1.eps, norm="layer")
        return stream, normed


class FusedTransformer(WanTransformer3DModel):
    """The model's forward, whose output norm stands in no module of its own."""

    output_norm: SiteOp

    def forward(
        self,
        hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_hidden_states_image: torch.Tensor | None = None,
        return_dict: bool = True,
        attention_kwargs: dict[str, Any] | None = None,
    ) -> tuple[torch.Tensor] | Transformer2DModelOutput:
        patch = self.config.patch_size
        grid = [size // step for size, step in zip(hidden_states.shape[2:], patch, strict=True)]
        rotary = self.rope(hidden_states)
        stream = self.patch_embedding(hidden_states).flatten(2).transpose(1, 2).contiguous()
        rows = None  # of timesteps in a sample; None for one per sample
        if timestep.ndim == 2:
            timestep = distinct_rows(timestep, grid[0])
            rows = timestep.shape[1]
        temb, projected, text, _ = self.condition_embedder(timestep.flatten(), encoder_hidden_states, timestep_seq_len=rows)
        modulation = projected.unflatten(-1, (6, -1))
        for block in self.blocks:
            stream = block(stream, text, modulation, rotary)
        shift, scale = _modulation(self.scale_shift_table, temb.unsqueeze(-2), stream)
        normed = self.output_norm(stream, None, None, scale, shift, eps=self.norm_out.eps, norm="layer")
        patches = self.proj_out(normed).unflatten(1, grid).unflatten(-1, (*patch, -1))  # [B, F, H, W, patch of three, C]
        predicted = patches.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6, 7).flatten(4, 5).flatten(2, 3)
        return Transformer2DModelOutput(sample=predicted) if return_dict else (predicted,)


def distinct_rows(timestep: torch.Tensor, frames: int) -> torch.Tensor:
    """Timesteps `[B, S]` of S tokens as those of their frames, `[B, frames]`, where the tokens of each frame share one; else as they are.

    The pipelines give all tokens of a latent frame one timestep: 0 in the frame of a given image, the step's in the others.  So everything
    that follows from a timestep is made once per frame: for S = 27280, 31 rows in the place of 2 GB of float32 in every block.  The host
    waits for the comparison, unless the tokens share memory.  It makes none where it cannot wait: in a capture, and in compiled code.
    """
    of_frames = timestep.reshape(timestep.shape[0], frames, -1)
    cannot_wait = torch.compiler.is_compiling() or (timestep.is_cuda and torch.cuda.is_current_stream_capturing())
    shared = timestep.stride(1) == 0 or (not cannot_wait and bool((of_frames == of_frames[..., :1]).all()))
    return of_frames[..., 0] if shared else timestep


def _modulation(table: torch.Tensor, temb: torch.Tensor, stream: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`table [1, n, D]` plus `temb [B, n | 1, D]`, with rows of timesteps `[B, rows, n | 1, D]`: n tensors in float32 that broadcast over
    `stream [B, S, D]` in one of the ops' forms: `[B, D]`; for each token `[B, S, D]`; for each frame `[B, F, 1, D]`.

    The sum widens temb itself, without the copy that `temb.float()` makes of 1 GiB of values per token.
    """
    values = (table.float() + temb).unbind(-2)
    of_frames = temb.ndim == 4 and temb.shape[1] != stream.shape[1]
    return tuple(each.unsqueeze(2) for each in values) if of_frames else values


def _gated_sum(stream: torch.Tensor, gate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`stream + gate * x` in float32, rounded to x's dtype, for tokens `[B, S, D]` and a gate in one of the forms of `_modulation`."""
    if gate.ndim == 4:
        frames = (x.shape[0], gate.shape[1], -1, x.shape[2])
        return (stream.reshape(frames) + x.reshape(frames) * gate).to(x.dtype).flatten(1, 2)
    return (stream + x * (gate[:, None] if gate.ndim == 2 else gate)).to(x.dtype)


class Wan(DiffusionModel):
    """A Wan model: classifier-free guidance with two forwards per step, 50 steps, UniPC."""

    latent_pixels: ClassVar[int] = 8
    """Pixels per latent along each side, by the autoencoder."""
    flow_shift: ClassVar[float]
    """Shift of the noise levels: 3 at 480 rows, 5 at 720, by the authors."""
    timestep_per_token: ClassVar[bool] = False
    """Whether every token has its timestep and so its own modulation (`expand_timesteps` of the pipeline)."""

    transformer = WanTransformer3DModel
    stacks = {"num_layers": "blocks"}
    tiny_config = {"num_layers": 3, "num_attention_heads": 2, "attention_head_dim": 64, "ffn_dim": 256, "text_dim": 32}
    tiny_shapes = Shapes(height=64, width=96, frames=9, text_tokens=12, negative_text_tokens=12)
    steps = 50
    forwards = 2
    sites = (FIRST_NORM, OUTPUT_NORM, SELF_RESIDUAL, CROSS_RESIDUAL, NEXT_RESIDUAL, SELF_QK, FEED_FORWARD_GELU)
    forward_arguments = {
        GELU: ("hidden_states",),
        WanRotaryPosEmbed: ("hidden_states",),
        WanAttnProcessor: ("attn", "hidden_states", "encoder_hidden_states", "attention_mask", "rotary_emb"),
        WanTransformerBlock: ("hidden_states", "encoder_hidden_states", "temb", "rotary_emb"),
        WanTransformer3DModel: (
            "hidden_states",
            "timestep",
            "encoder_hidden_states",
            "encoder_hidden_states_image",
            "return_dict",
            "attention_kwargs",
        ),
    }

    def reason_not_for(self, config: Mapping[str, Any]) -> str:
        found = [name for name in ("image_dim", "added_kv_proj_dim") if config.get(name) is not None]
        return f"{' and '.join(found)} given, expected a model that attends to text alone" if found else ""

    def latents(self, shapes: Shapes, config: Mapping[str, Any], *, generator: torch.Generator) -> torch.Tensor:
        frames = (shapes.frames - 1) // LATENT_FRAMES + 1
        sides = (shapes.height // self.latent_pixels, shapes.width // self.latent_pixels)
        return torch.randn(1, config["in_channels"], frames, *sides, generator=generator, device=generator.device)

    def conditioning(self, shapes: Shapes, config: Mapping[str, Any], *, dtype: torch.dtype, generator: torch.Generator) -> Conditioning:
        def text(tokens: int) -> torch.Tensor:
            made = torch.randn(1, tokens, config["text_dim"], generator=generator, device=generator.device)
            made[:, tokens // TEXT_SHARE :] = 0
            return made.to(dtype)

        return {"prompt": text(shapes.text_tokens), "negative_prompt": text(shapes.negative_text_tokens)}

    def predict(self, transformer: Any, latents: torch.Tensor, timestep: torch.Tensor, conditioning: Conditioning) -> torch.Tensor:
        per_sample = timestep.expand(latents.shape[0])
        if self.timestep_per_token:
            frames, rows, columns = latents.shape[2:]
            patch = transformer.config.patch_size
            tokens = (frames // patch[0]) * (rows // patch[1]) * (columns // patch[2])
            per_sample = per_sample.float()[:, None].expand(-1, tokens)
        prompt, negative_prompt = conditioning["prompt"], conditioning["negative_prompt"]
        given = latents.to(prompt.dtype)
        wanted, unwanted = (
            transformer(hidden_states=given, timestep=per_sample, encoder_hidden_states=text, return_dict=False)[0]
            for text in (prompt, negative_prompt)
        )
        guided: torch.Tensor = unwanted + GUIDANCE_SCALE * (wanted - unwanted)
        return guided

    def scheduler(self, shapes: Shapes, config: Mapping[str, Any], steps: int, *, device: torch.device) -> Any:
        """Settings: diffusers' scripts/convert_wan_to_diffusers.py (shift 3, TI2V 5), and WanPipeline ("5.0 for 720P, 3.0 for 480P")."""
        made = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=self.flow_shift)
        made.set_timesteps(steps, device=device)
        return made

    def substitute(self, transformer: Any, calls: OpCalls, into: Substitution) -> None:
        def at(site: Site, module: Any) -> SiteOp:
            return calls.at(site.op, site.name, into.place(module))

        into.swap(transformer, FusedTransformer, output_norm=at(OUTPUT_NORM, transformer.norm_out))
        into.swap(transformer.rope, FusedRotaryPosEmbed)
        blocks = list(transformer.blocks)
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            into.set_processor(block.attn1, FusedAttnProcessor(at(SELF_QK, block.attn1)))
            into.swap(block.ffn.net[0], FusedGelu, fused=at(FEED_FORWARD_GELU, block.ffn))
            into.swap(
                block,
                FusedBlock,
                first_norm=at(FIRST_NORM, block) if block is blocks[0] else None,
                self_residual=at(SELF_RESIDUAL, block),
                cross_residual=at(CROSS_RESIDUAL, block),
                next_residual=None if following is None else at(NEXT_RESIDUAL, block),
                next_table=None if following is None else following.scale_shift_table,
                zero=torch.zeros(1, dtype=torch.float32, device=block.scale_shift_table.device),
            )


class Wan21T2V1B(Wan):
    """Wan2.1-T2V-1.3B at 832 x 480, 81 frames."""

    name = "wan2_1_t2v_1_3b"
    title = "Wan2.1-T2V-1.3B, 832 x 480, 81 frames"
    config = {
        "num_layers": 30,
        "num_attention_heads": 12,
        "attention_head_dim": 128,
        "in_channels": 16,
        "out_channels": 16,
        "text_dim": 4096,
        "ffn_dim": 8960,
    }
    shapes = Shapes(height=480, width=832, frames=81, text_tokens=512, negative_text_tokens=512)
    flow_shift = 3.0


class Wan21T2V14B(Wan):
    """Wan2.1-T2V-14B at 1280 x 720, 81 frames; each of Wan2.2-A14B's two transformers is of this configuration."""

    name = "wan2_1_t2v_14b"
    title = "Wan2.1-T2V-14B, 1280 x 720, 81 frames"
    config = {**Wan21T2V1B.config, "num_layers": 40, "num_attention_heads": 40, "ffn_dim": 13824}
    shapes = Shapes(height=720, width=1280, frames=81, text_tokens=512, negative_text_tokens=512)
    flow_shift = 5.0


class Wan22TI2V5B(Wan):
    """Wan2.2-TI2V-5B at 1280 x 704, 121 frames, from text alone: each token has its timestep and its modulation `[B, S, D]`."""

    name = "wan2_2_ti2v_5b"
    title = "Wan2.2-TI2V-5B, 1280 x 704, 121 frames"
    config = {**Wan21T2V1B.config, "num_attention_heads": 24, "in_channels": 48, "out_channels": 48, "ffn_dim": 14336}
    shapes = Shapes(height=704, width=1280, frames=121, text_tokens=512, negative_text_tokens=512)
    tiny_shapes = Shapes(height=128, width=160, frames=9, text_tokens=12, negative_text_tokens=12)
    latent_pixels = 16
    flow_shift = 5.0
    timestep_per_token = True
