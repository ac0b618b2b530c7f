"""What the tests of kernels share: the loaded collection, a device on which Triton runs, and one rounding as the measure of error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fusebench.accuracy.execution import run_plain
from fusebench.registry import Collection, Kernel, Op, load_collection
from fusebench.registry.torch_operator import interpreting

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def collection() -> Collection:
    """This repository's kernels."""
    loaded = load_collection([ROOT / "kernels"], entry_points=False)
    assert not loaded.problems, loaded.problems
    return loaded


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where Triton kernels run: the GPU, or the interpreter on the CPU with the casts of a GPU."""
    if interpreting():
        from fusebench.accuracy.interpreter import install_exact_casts

        install_exact_casts()
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("Triton kernels run on a GPU or in the interpreter")
    return torch.device("cuda", 0)


class Bench:
    """One op with its kernels on one device."""

    def __init__(self, collection: Collection, op: Op, device: torch.device) -> None:
        self.collection = collection
        self.op = op
        self.device = device
        self.split = collection.kernel(f"{op.name}/{op.split_reference}")

    def kernel(self, name: str) -> Kernel:
        return self.collection.kernel(f"{self.op.name}/{name}")

    def buffers(self, params: Any, seed: int = 0, magnitude: float = 1.0) -> Mapping[str, torch.Tensor]:
        generator = torch.Generator(device=self.device).manual_seed(seed)
        return self.op.buffers(params, device=self.device, generator=generator, magnitude=magnitude)

    def run(self, name: str, params: Any, buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Outputs of the kernel on a copy of `buffers`."""
        with np.errstate(all="ignore"):  # the interpreter computes with NumPy, which warns of planted NaN and Inf
            return dict(zip(self.op.outputs, run_plain(self.kernel(name), self.op, params, buffers), strict=True))

    def reference(self, params: Any, buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return self.op.reference(params, self.op.arguments(params, buffers))


@pytest.fixture(scope="session")
def bench_of(collection: Collection, device: torch.device) -> Callable[[str], Bench]:
    """`bench_of(op)`: that op's kernels on the device where Triton runs."""
    return lambda name: Bench(collection, collection.op(name), device)


def rounding_errors(output: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Errors of `output` [..., D] as shares of what float32 arithmetic and one rounding to nearest may leave: above 1 is too much.

    One rounding leaves half the spacing of the output's dtype at the reference value.  Float32 arithmetic over a row leaves some
    units in the last place of its largest value (16 granted): the sum of squares scales the whole row, and the rotation subtracts
    one element from another.
    """
    limits = torch.finfo(output.dtype)
    exponent = torch.floor(torch.log2(reference.abs().clamp_min(limits.smallest_normal)))
    rounding = 0.5 * limits.eps * torch.exp2(exponent)
    arithmetic = 16 * 2.0**-24 * reference.abs().amax(dim=-1, keepdim=True)
    return (output.double() - reference).abs() / (rounding + arithmetic)


@pytest.fixture(scope="session")
def one_rounding() -> Callable[[torch.Tensor, torch.Tensor], float]:
    """`one_rounding(output, reference)`: the largest of `rounding_errors`, 0 for no elements."""
    return lambda output, reference: float(rounding_errors(output, reference).max()) if output.numel() else 0.0
