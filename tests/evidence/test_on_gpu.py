"""Static evidence against what the driver says of the same kernels, loaded and launched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fusebench.evidence.disassembly import code_of
from fusebench.evidence.records import Code, StaticReport
from fusebench.evidence.targets import TARGETS

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def target() -> str:
    import torch

    major, minor = torch.cuda.get_device_capability()
    name = f"sm_{major}{minor}"
    if name not in TARGETS:
        pytest.skip(f"no static target for {name}")
    return name


def loaded(root: Path, kernel: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """(registers, hash of the instructions) of each launch of `kernel`, as the driver and the compilers have them on this GPU."""
    import torch
    from triton.runtime.jit import JITFunction

    from fusebench.registry import load_collection, nvrtc

    triton_kernels: list[Any] = []
    cuda_modules: list[tuple[str, Any]] = []
    run, compile_cubin = JITFunction.run, nvrtc.compile_cubin

    def running(self: Any, *args: Any, **kwargs: Any) -> Any:
        triton_kernels.append(run(self, *args, **kwargs))
        return triton_kernels[-1]

    def compiling(source: nvrtc.KernelSource, arch: str, **options: Any) -> Any:
        cuda_modules.append((source.entry, compile_cubin(source, arch, **options)))
        return cuda_modules[-1][1]

    monkeypatch.setattr(JITFunction, "run", running)
    monkeypatch.setattr(nvrtc, "compile_cubin", compiling)
    monkeypatch.setattr(nvrtc.cubin_cache, "_cache", lambda: None)  # everything is compiled here
    collection = load_collection([root / "kernels"], entry_points=False)
    found = collection.kernel(kernel)
    found(torch.rand((4097, 1024), device="cuda")[:4096])  # one of the spoiled kernels starts an element late
    torch.cuda.synchronize()
    return [(one.n_regs, code_of(one.asm["cubin"], one.name).sha256) for one in triton_kernels] + [
        (registers_of(bytes(module.code), entry), code_of(bytes(module.code), entry).sha256) for entry, module in cuda_modules
    ]


def registers_of(cubin: bytes, entry: str) -> int:
    """Registers per thread of `entry`, as the driver has them in the current context.

    The driver is asked itself: what cuda-core calls this figure has been a method, then a property.
    """
    from cuda.bindings import driver

    def answer(call: Any, *arguments: Any) -> Any:
        status, *values = call(*arguments)
        assert status == driver.CUresult.CUDA_SUCCESS, (call.__name__, status)
        return values[0] if values else None

    module = answer(driver.cuModuleLoadData, cubin)
    try:
        function = answer(driver.cuModuleGetFunction, module, entry.encode())
        return int(answer(driver.cuFuncGetAttribute, driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, function))
    finally:
        answer(driver.cuModuleUnload, module)


@pytest.mark.parametrize("name", ["in_cuda", "unchanged", "spilling", "narrower", "fewer_warps", "longer"])
def test_registers_and_machine_code_are_the_drivers(
    spoiled_project: Path,
    evidence: Callable[..., StaticReport],
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    name: str,
) -> None:
    kernel = f"unit_sum/{name}@1"
    report = evidence(spoiled_project, target, kernel=kernel)
    codes: list[Code] = [launch.code for launch in report.results[0].launches]
    assert [(code.registers, code.sha256) for code in codes] == loaded(spoiled_project, kernel, monkeypatch)
