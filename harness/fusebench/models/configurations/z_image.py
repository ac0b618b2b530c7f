"""Z-Image-Turbo: 2 noise refiners, 2 context refiners and 30 blocks, one forward per denoise step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, ZImageTransformer2DModel
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.attention_processor import Attention
from diffusers.models.transformers.transformer_z_image import (
    FinalLayer,
    RopeEmbedder,
    ZImageTransformerBlock,
    ZSingleStreamAttnProcessor,
)

from ..diffusion_model import Conditioning, DiffusionModel, Shapes, Site
from ..op_calls import OpCalls, SiteOp
from ..substitution import Substitution
from .rotary import RotaryTable, cosines_and_sines, rotate
from .streams import pack_projections, project

LATENT_PIXELS = 8
"""Pixels per latent along each side, by the autoencoder; tokens are patches of 2 x 2 latents."""


class StackSites:
    """The sites of one stack of blocks.  Context refiners have no modulation, so only their q and k are an op."""

    def __init__(self, block: str, stack: str, *, modulated: bool = True) -> None:
        self.qk = Site(name=f"{block}: q and k", op="qknorm_rope", stack=stack)
        self.norm = Site(name=f"{block}: norm before the attention", op="norm_scale_shift", stack=stack)
        self.attention = Site(name=f"{block}: attention's residual", op="norm_tanh_mul_add_norm_scale", stack=stack)
        self.feed_forward = Site(name=f"{block}: feed-forward's residual", op="norm_tanh_mul_add", stack=stack)
        self.all = (self.qk, self.norm, self.attention, self.feed_forward) if modulated else (self.qk,)


JOINT = StackSites("block", "n_layers")
IMAGE = StackSites("noise refiner", "n_refiner_layers")
TEXT = StackSites("context refiner", "n_refiner_layers", modulated=False)
OUTPUT_NORM = Site(name="output norm", op="norm_scale_shift")


class FusedRopeEmbedder(RopeEmbedder):
    """Rotary rows in the ops' form, `[T, R]` float32; the model splits, pads and joins them as it does its complex numbers `[T, R/2]`."""

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        return cosines_and_sines(super().__call__(ids))


class FusedAttnProcessor(ZSingleStreamAttnProcessor):
    """Norm and rotation of q and k in one launch, in place.

    Args:
        positions: counts the rows of the longest rotary table.
    """

    def __init__(self, fused: SiteOp, positions: torch.Tensor) -> None:
        super().__init__()
        self._fused, self._positions = fused, positions

    def __call__(
        self,
        attn: Attention,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        freqs_cis: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if freqs_cis is None:
            raise ValueError("Z-Image's attention has no rotary rows; expected those of its `rope_embedder`")
        layers = (attn.to_q, attn.to_k, attn.to_v)
        query, key, value = project(
            [(hidden_states, layers)], attn.to_q.out_features // attn.heads, packed=self._fused.takes_packed
        ).joined()
        # Every token has a row of its own, also where samples are several: to the op they are one long sample.
        table = RotaryTable(freqs_cis.flatten(0, 1), self._positions)
        rotate(self._fused, query.flatten(0, 1)[None], key.flatten(0, 1)[None], attn.norm_q, attn.norm_k, table)
        if attention_mask is not None and attention_mask.ndim == 2:
            attention_mask = attention_mask[:, None, None, :]
        joined = dispatch_attention_fn(query, key, value, attn_mask=attention_mask, backend=self._attention_backend).flatten(2, 3)
        for layer in attn.to_out:
            joined = layer(joined)
        return joined


class FusedBlock(ZImageTransformerBlock):
    """A modulated block: three launches hold its four norms, two tanh gates and two residuals.

    diffusers' `RMSNorm` rounds also before it multiplies with its weight; the ops do not, so their bits differ and their error is smaller.
    """

    norm: SiteOp
    attention_residual: SiteOp
    feed_forward_residual: SiteOp
    no_shift: torch.Tensor
    """`[1]`, zero: Z-Image scales without a shift."""

    def forward(
        self,
        x: torch.Tensor,
        attn_mask: torch.Tensor | None,
        freqs_cis: torch.Tensor,
        adaln_input: torch.Tensor | None = None,
        noise_mask: torch.Tensor | None = None,
        adaln_noisy: torch.Tensor | None = None,
        adaln_clean: torch.Tensor | None = None,
    ) -> torch.Tensor:
        _refuse_noise_mask(noise_mask)
        norm, after, before, last = self.attention_norm1, self.attention_norm2, self.ffn_norm1, self.ffn_norm2
        scale_msa, gate_msa, scale_mlp, gate_mlp = self.adaLN_modulation(adaln_input)[:, None].chunk(4, dim=2)
        y = self.norm(x, norm.weight, None, scale_msa, self.no_shift, eps=norm.eps, norm="rms")
        y = self.attention(y, attention_mask=attn_mask, freqs_cis=freqs_cis)
        x, y = self.attention_residual(x, y, gate_msa, after.weight, None, before.weight, None, scale_mlp, eps=after.eps, norm="rms")
        y = self.feed_forward(y)
        summed: torch.Tensor = self.feed_forward_residual(x, y, gate_mlp, last.weight, None, eps=last.eps, norm="rms")
        return summed


class FusedFinalLayer(FinalLayer):
    """The layer norm before the output projection, which has a scale and no shift."""

    fused: SiteOp
    no_shift: torch.Tensor

    def forward(
        self,
        x: torch.Tensor,
        c: torch.Tensor | None = None,
        noise_mask: torch.Tensor | None = None,
        c_noisy: torch.Tensor | None = None,
        c_clean: torch.Tensor | None = None,
    ) -> torch.Tensor:
        _refuse_noise_mask(noise_mask)
        scale = self.adaLN_modulation(c)[:, None]
        projected: torch.Tensor = self.linear(self.fused(x, None, None, scale, self.no_shift, eps=self.norm_final.eps, norm="layer"))
        return projected


def _refuse_noise_mask(mask: torch.Tensor | None) -> None:
    if mask is not None:
        raise ValueError("the fused ops hold one modulation for all tokens; found a noise mask, expected None, as Z-Image-Turbo passes it")


class ZImageTurbo(DiffusionModel):
    """Z-Image-Turbo at 1024 x 1024, one forward per step, 9 steps."""

    name = "z_image_turbo"
    title = "Z-Image-Turbo, 1024 x 1024"
    transformer = ZImageTransformer2DModel
    config = {
        "in_channels": 16,
        "dim": 3840,
        "n_layers": 30,
        "n_refiner_layers": 2,
        "n_heads": 30,
        "n_kv_heads": 30,
        "norm_eps": 1e-5,
        "qk_norm": True,
        "cap_feat_dim": 2560,
        "rope_theta": 256.0,
        "t_scale": 1000.0,
        "axes_dims": [32, 48, 48],
        "axes_lens": [1024, 512, 512],
    }
    tiny_config = {
        "dim": 128,
        "n_layers": 2,
        "n_heads": 2,
        "n_kv_heads": 2,
        "cap_feat_dim": 32,
        "axes_dims": [16, 24, 24],
        "axes_lens": [64, 32, 32],
    }
    stacks = {"n_layers": "layers", "n_refiner_layers": "noise_refiner"}
    shapes = Shapes(height=1024, width=1024, text_tokens=32)
    tiny_shapes = Shapes(height=128, width=96, text_tokens=32)
    steps = 8  # of the pipeline's example; 9 in older ones, whose last step had no noise left
    sites = (*JOINT.all, *IMAGE.all, *TEXT.all, OUTPUT_NORM)
    forward_arguments = {
        RopeEmbedder: ("ids",),
        ZSingleStreamAttnProcessor: ("attn", "hidden_states", "encoder_hidden_states", "attention_mask", "freqs_cis"),
        ZImageTransformerBlock: ("x", "attn_mask", "freqs_cis", "adaln_input", "noise_mask", "adaln_noisy", "adaln_clean"),
        FinalLayer: ("x", "c", "noise_mask", "c_noisy", "c_clean"),
    }

    def latents(self, shapes: Shapes, config: Mapping[str, Any], *, generator: torch.Generator) -> torch.Tensor:
        shape = (1, config["in_channels"], shapes.height // LATENT_PIXELS, shapes.width // LATENT_PIXELS)
        return torch.randn(shape, generator=generator, device=generator.device)

    def conditioning(self, shapes: Shapes, config: Mapping[str, Any], *, dtype: torch.dtype, generator: torch.Generator) -> Conditioning:
        text = torch.randn(shapes.text_tokens, config["cap_feat_dim"], generator=generator, device=generator.device)
        return {"cap_feats": [text.to(dtype)]}

    def predict(self, transformer: Any, latents: torch.Tensor, timestep: torch.Tensor, conditioning: Conditioning) -> torch.Tensor:
        # The pipeline's loop holds float32 latents; the transformer takes one tensor per sample, with an axis of frames.
        samples = latents.to(conditioning["cap_feats"][0].dtype).unsqueeze(2).unbind(dim=0)
        found = transformer(list(samples), (1000 - timestep.expand(1)) / 1000, return_dict=False, **conditioning)
        return -torch.stack([sample.float() for sample in found[0]]).squeeze(2)

    def scheduler(self, shapes: Shapes, config: Mapping[str, Any], steps: int, *, device: torch.device) -> Any:
        """Settings: scheduler/scheduler_config.json of Tongyi-MAI/Z-Image-Turbo; sigmas: diffusers' ZImagePipeline."""
        made = FlowMatchEulerDiscreteScheduler(shift=3.0)
        made.set_timesteps(sigmas=torch.linspace(1.0, 1 / steps, steps).tolist(), device=device)
        return made

    def arrange(self, transformer: Any) -> None:
        pack_projections(transformer)

    def substitute(self, transformer: Any, calls: OpCalls, into: Substitution) -> None:
        def at(site: Site, module: Any) -> SiteOp:
            return calls.at(site.op, site.name, into.place(module))

        weight = transformer.layers[0].attention_norm1.weight
        no_shift = torch.zeros(1, dtype=weight.dtype, device=weight.device)
        texts, rows, columns = transformer.axes_lens
        positions = torch.arange(texts + rows * columns, device=weight.device)
        into.swap(transformer.rope_embedder, FusedRopeEmbedder)
        for sites, blocks in ((IMAGE, transformer.noise_refiner), (TEXT, transformer.context_refiner), (JOINT, transformer.layers)):
            for block in blocks:
                into.set_processor(block.attention, FusedAttnProcessor(at(sites.qk, block.attention), positions))
                if block.modulation:
                    into.swap(
                        block,
                        FusedBlock,
                        norm=at(sites.norm, block),
                        attention_residual=at(sites.attention, block),
                        feed_forward_residual=at(sites.feed_forward, block),
                        no_shift=no_shift,
                    )
        for layer in transformer.all_final_layer.values():
            into.swap(layer, FusedFinalLayer, fused=at(OUTPUT_NORM, layer), no_shift=no_shift)
