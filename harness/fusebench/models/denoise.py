"""Denoise steps: one prediction at a fixed timestep, and the scheduler's loop from the same noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .diffusion_model import Conditioning, DiffusionModel, Shapes

if TYPE_CHECKING:
    import torch

Predict = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""Latents and timestep to the noise prediction."""

FEWEST_SCHEDULED = 2
"""Steps of the shortest schedule.  diffusers stretches a schedule between its first and its last noise level, and one of a single step
becomes NaN (Qwen-Image's `shift_terminal`)."""
LATENTS_SEED = 1
CONDITIONING_SEED = 2


class Denoising:
    """The inputs of one model on one device, drawn once, and what is run on them.

    Args:
        dtype: of the transformer; latents are handed to it in this type.
    """

    def __init__(
        self, model: DiffusionModel, config: Mapping[str, Any], shapes: Shapes, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        import torch

        self.model, self.config, self.shapes, self.device, self.dtype = model, config, shapes, device, dtype
        # float32: the scheduler's type; each prediction gets them rounded, as the pipelines do.
        noise = torch.Generator(device=device).manual_seed(LATENTS_SEED)
        self.noise = model.latents(shapes, config, generator=noise)
        text = torch.Generator(device=device).manual_seed(CONDITIONING_SEED)
        self.conditioning: Conditioning = model.conditioning(shapes, config, dtype=dtype, generator=text)

    def predictor(self, transformer: Any) -> Predict:
        """The noise prediction of one step by `transformer`: all forwards and their guidance."""

        def predict(latents: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
            return self.model.predict(transformer, latents, timestep, self.conditioning)

        return predict

    def middle(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents and timestep for a step that stands for all: the timestep halfway through the published number of steps."""
        scheduler = self.model.scheduler(self.shapes, self.config, self.model.steps, device=self.device)
        return self.noise.to(self.dtype), scheduler.timesteps[self.model.steps // 2]

    def loop(self, predict: Predict, steps: int) -> Iterator[torch.Tensor]:
        """Latents after each of `steps` steps of the scheduler's loop, in the scheduler's type on the device.

        A loop of one step is the first of `FEWEST_SCHEDULED`.
        """
        scheduler = self.model.scheduler(self.shapes, self.config, max(steps, FEWEST_SCHEDULED), device=self.device)
        latents = self.noise
        for timestep in scheduler.timesteps[:steps]:
            noise = predict(latents.to(self.dtype), timestep)
            latents = scheduler.step(noise.float(), timestep, latents, return_dict=False)[0]
            yield latents

    def trajectory(self, predict: Predict, steps: int) -> list[torch.Tensor]:
        """Latents after each of `steps` steps of the scheduler's loop, float32 on the host."""
        return [latents.float().cpu() for latents in self.loop(predict, steps)]
