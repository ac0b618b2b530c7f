"""CUDA C++ kernels compiled at run time by NVRTC through `cuda-core`. Compiling needs neither nvcc nor a GPU.

This module compiles, caches loaded kernels and launches on torch's current stream. The kernel author chooses the source and its macros.
Compiled kernels are kept on disk by `cubin_cache`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import msgspec

from . import cubin_cache
from .launches.driver_launch import Geometry, described_status, driver, packed_cuda
from .launches.machine_code import current_listener
from .launches.replay import current_recorder

MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
"""`CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES` of cuda.h."""


class KernelSource(msgspec.Struct, frozen=True):
    """A `.cu` file, the `extern "C"` kernel in it, and the macros it is compiled with (sorted name, value pairs)."""

    file: Path
    entry: str
    macros: tuple[tuple[str, int], ...]


def kernel_source(file: Path, entry: str, macros: Mapping[str, int | bool]) -> KernelSource:
    """A hashable description of one specialisation."""
    return KernelSource(file, entry, tuple(sorted((name, int(value)) for name, value in macros.items())))


def compile_cubin(source: KernelSource, arch: str, *, log: TextIO | None = None) -> Any:
    """Compile for `arch` (such as `sm_90`), on any machine with cuda-core and NVRTC; returns cuda-core's ObjectCode.

    `#include "..."` finds files beside the source, and none in the current folder. With a `log`, the assembler writes register and spill
    counts there; the instructions are the same.

    Raises:
        cuda-core's NVRTC error, with the compiler's log in its message.
    """
    return _core().Program(source.file.read_text(), "c++", _options(source, arch, log)).compile("cubin", logs=log)


def _options(source: KernelSource, arch: str, log: TextIO | None = None) -> Any:
    return _core().ProgramOptions(
        name=str(source.file),  # whose folder is where headers are looked for; of a source without a name, the current one
        std="c++17",
        arch=arch,
        define_macro=[(name, str(value)) for name, value in source.macros] or None,  # an empty list is refused by some versions
        include_path=[str(source.file.parent)],
        ptxas_options=None if log is None else "-v",
    )


@dataclass
class _Loaded:
    kernel: Any
    cubin: Any
    """cuda-core's ObjectCode."""
    allowed_bytes: int = 0
    """Dynamic shared memory that its blocks were given leave for."""


@functools.cache
def _loaded(source: KernelSource, device_index: int) -> _Loaded:
    """The compiled kernel on torch's device `device_index`, and the object code that it was loaded from."""
    import torch

    major, minor = torch.cuda.get_device_capability(device_index)
    # Torch has made its primary context current; cuda-core adopts that one.
    torch.cuda.current_stream(device_index).synchronize()
    _core().Device(device_index).set_current()
    arch = f"sm_{major}{minor}"
    cubin, kernel = cubin_cache.kept(
        source.file, _options(source, arch), lambda: compile_cubin(source, arch), lambda made: made.get_kernel(source.entry)
    )
    return _Loaded(kernel, cubin)


@functools.lru_cache(maxsize=64)
def _stream(handle: int) -> Any:
    return _core().Stream.from_handle(handle)


def _allow_shared(loaded: _Loaded, entry: str, device_index: int, shared_bytes: int) -> None:
    """Let the kernel's blocks ask for so much dynamic shared memory; a repeated launch needs it too.

    Whether they need leave depends on what the kernel has of its own: both together may take 48 KB without.

    Raises:
        RuntimeError: the driver refuses, such as on a GPU with less.
    """
    handle, device = ctypes.c_void_p(int(loaded.kernel.handle)), ctypes.c_int(device_index)
    status = driver().cuKernelSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES, ctypes.c_int(shared_bytes), handle, device)
    if status:
        raise RuntimeError(
            f"{entry}: the driver does not give a block {shared_bytes} bytes of shared memory on device {device_index}: "
            f"{described_status(status)}"
        )
    loaded.allowed_bytes = shared_bytes


def launch(source: KernelSource, *, grid: int, block: int, device_index: int, arguments: Sequence[Any], shared_bytes: int = 0) -> None:
    """Launch on torch's current stream.

    Args:
        grid: blocks.
        block: threads per block.
        shared_bytes: dynamic shared memory per block, for which the kernel is given leave first.
        arguments: tensors (their addresses), None (a null pointer), ints (64-bit), ctypes or numpy scalars.
    """
    import torch

    core = _core()
    loaded = _loaded(source, device_index)
    kernel = loaded.kernel
    if shared_bytes > loaded.allowed_bytes:
        _allow_shared(loaded, source.entry, device_index, shared_bytes)
    config = core.LaunchConfig(grid=grid, block=block, shmem_size=shared_bytes)

    def run(*values: Any, stream: int) -> None:
        core.launch(_stream(stream), config, kernel, *values)

    run(*(_value(argument) for argument in arguments), stream=torch._C._cuda_getCurrentRawStream(device_index))
    recorder = current_recorder()
    if recorder is not None:
        values = [0 if argument is None else argument for argument in arguments]
        recorder.note(run, values, functools.partial(packed_cuda, kernel, source.entry, Geometry((grid, 1, 1), block, shared_bytes)))
    listener = current_listener()
    if listener is not None:
        listener.note(source.entry, bytes(loaded.cubin.code), (grid, block), arguments)


def _value(argument: Any) -> Any:
    if argument is None:
        return 0
    return argument.data_ptr() if hasattr(argument, "data_ptr") else argument


@functools.cache
def _core() -> Any:
    """cuda.core, or cuda.core.experimental where the installed version still keeps the API there."""
    import cuda.core

    if hasattr(cuda.core, "Program"):
        return cuda.core
    import cuda.core.experimental

    return cuda.core.experimental
