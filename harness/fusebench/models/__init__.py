"""Denoise steps of real models: diffusers' transformers at full configuration, with the fused ops put in through `dispatch`."""
