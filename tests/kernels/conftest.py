"""What the tests of kernels share: the loaded collection, a device on which Triton runs, and one rounding as the measure of error."""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from fusebench.accuracy.execution import run_plain
from fusebench.registry import Collection, Kernel, Op, load_collection
from fusebench.registry.compiled import compiled_kernel
from fusebench.registry.launching import interpreting
from fusebench.schema import Role
from helpers import cubin_dump
from helpers.forked_workers import run_module

ROOT = Path(__file__).parents[2]


@functools.cache
def load_kernels() -> Collection:
    return load_collection([ROOT / "kernels"], entry_points=False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`each_kernel` is every kernel of this repository but peers, `each_op` every op, by their names."""
    if "each_kernel" in metafunc.fixturenames:
        metafunc.parametrize("each_kernel", [key for key, one in load_kernels().kernels.items() if one.role is not Role.PEER])
    if "each_op" in metafunc.fixturenames:
        metafunc.parametrize("each_op", sorted(load_kernels().ops))


@pytest.fixture(scope="session")
def collection() -> Collection:
    """This repository's kernels."""
    loaded = load_kernels()
    assert not loaded.problems, loaded.problems
    return loaded


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where Triton kernels run: the GPU, or the interpreter on the CPU with the casts of a GPU."""
    if interpreting():
        from fusebench.accuracy.interpreter import install_exact_casts, install_remembered_builtins

        install_exact_casts()
        install_remembered_builtins()
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("Triton kernels run on a GPU or in the interpreter")
    return torch.device("cuda", 0)


class Compiled(list[dict[str, Any]]):
    """Launches that were compiled, each with what was wanted and what came out (see helpers/static_compile.py)."""

    def of(self, kernel: str, case: str, capability: int = 90) -> list[dict[str, Any]]:
        """The launches of a kernel for a case."""
        return [one for one in self if (one["kernel"], one["case"], one["capability"]) == (kernel, case, capability)]

    def one(self, kernel: str, case: str, capability: int = 90) -> dict[str, Any]:
        """The only launch of a kernel for a case."""
        (launch,) = self.of(kernel, case, capability)
        return launch


@pytest.fixture(scope="session")
def compile_launches(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[dict[str, Any]]], Compiled]:
    """`compile_launches(wanted)`: Triton launches compiled without a GPU, in a process that interprets nothing.

    Each of `wanted` has `kernel` (its id), `case` (what the test calls it) and `params`, and may have `capabilities` ([90] unless
    given), `planted`: compile options that make a defect, and `inductor`: whether to compile as Inductor does inside torch.compile.
    """

    def run(wanted: list[dict[str, Any]]) -> Compiled:
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
        done = run_module(["helpers.static_compile", json.dumps(wanted)], environment, ROOT)
        assert done.returncode == 0, done.stderr[-4000:]
        compiled = json.loads(done.stdout)
        assert not {one["refused"] for one in compiled} - {""}, "a repeated launch would go through Triton's launcher"
        return Compiled(compiled)

    return run


class CudaCode:
    """CUDA sources compiled by NVRTC for GPUs that this machine lacks, and what came out (see helpers/cubin_dump.py)."""

    def __init__(self, nvrtc: ModuleType) -> None:
        self._nvrtc = nvrtc
        self._compiled: dict[tuple[Any, str, tuple[bytes, ...]], bytes] = {}

    def compile(self, source: Any, arch: str = "sm_90") -> bytes:
        """The cubin of a `nvrtc.KernelSource`, compiled once: a fifth of all compilations were of code that another test had asked for."""
        beside, above = source.file.parents[:2]
        headers = [header for folder in (beside, above, above / "_shared") for header in sorted(folder.glob("*.cuh"))]
        key = source, arch, tuple(file.read_bytes() for file in (source.file, *headers))
        if key not in self._compiled:
            self._compiled[key] = bytes(self._nvrtc.compile_cubin(source, arch).code)
        return self._compiled[key]

    def sass(self, source: Any, arch: str = "sm_90") -> str:
        """Its machine code."""
        self._need_cuobjdump()
        return cubin_dump.dump(self.compile(source, arch), "-sass")

    def resources(self, source: Any, arch: str = "sm_90") -> dict[str, int]:
        """REG, STACK, LOCAL, SHARED."""
        self._need_cuobjdump()
        return cubin_dump.resources(self.compile(source, arch))

    def _need_cuobjdump(self) -> None:
        if cubin_dump.cuobjdump() is None:
            pytest.skip("this Triton brings no cuobjdump")


@pytest.fixture(scope="session")
def cuda_code() -> CudaCode:
    """Compiles CUDA sources; skips where NVRTC is missing or cannot be loaded."""
    pytest.importorskip("cuda.core")
    binding = pytest.importorskip("cuda.bindings.nvrtc")
    try:
        binding.nvrtcVersion()
    except RuntimeError as error:  # the binding is there, the compiler is not
        pytest.skip(f"NVRTC cannot be loaded: {error}")
    from fusebench.registry import nvrtc

    return CudaCode(nvrtc)


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


@pytest.fixture
def memory_is_let_go() -> Iterator[None]:
    """For gigabytes that a test reserves: Triton's interpreter holds them in a cycle, and a process that has more than the machine cannot
    fork, though none is written."""
    yield
    gc.collect()


@pytest.fixture
def one_graph(monkeypatch: pytest.MonkeyPatch) -> Callable[[Bench, Any, Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]:
    """`one_graph(bench, params, buffers)`: outputs of the op's `compiled@1`, whose chain torch must trace as one graph.

    The default backend needs a C++ compiler; whether the chain is one graph does not depend on it.
    """
    compile_chain = torch.compile

    def compile_in_eager_mode(chain: Any, *, fullgraph: bool, dynamic: bool, options: Any) -> Any:
        assert fullgraph
        return compile_chain(chain, fullgraph=fullgraph, dynamic=dynamic, backend="aot_eager")

    def run(bench: Bench, params: Any, buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        kernel = compiled_kernel(bench.split, bench.op.compiled or {})
        assert kernel.id == bench.kernel("compiled@1").id
        monkeypatch.setattr(torch, "compile", compile_in_eager_mode)
        return dict(zip(bench.op.outputs, run_plain(kernel, bench.op, params, buffers), strict=True))

    return run


@pytest.fixture(scope="session")
def tile_of(collection: Collection) -> Callable[[str], Callable[..., Any]]:
    """`tile_of("norm_scale_shift/fused_triton@1")`: the tile of a released version, which its own file holds."""
    return lambda kernel: sys.modules[collection.kernel(kernel).__module__].tile  # type: ignore[no-any-return]


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
