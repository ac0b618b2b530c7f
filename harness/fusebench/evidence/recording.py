"""Finds a kernel's launches for a case: its own launch code runs, and launches are recorded instead of made.

Use a recording process for nothing else: Triton's compiler and driver and fusebench's NVRTC launch are replaced in it, and kernels may keep
the replacements' results.  It serves one target, because kernels remember the device they planned for.
"""

from __future__ import annotations

import hashlib
import json
import os
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from ..errors import FusebenchError
from ..registry import Kernel, cubin_cache, nvrtc
from ..registry.launches.machine_code import Listener, combined, current_listener, listening
from ..schema import Case
from .amd_targets import AmdTarget
from .records import EVIDENCE_VERSION
from .stand_in import device, on_device
from .targets import WARP, AnyTarget


class RecordingError(FusebenchError):
    """A kernel's launch code ran without a launch that can be compiled."""


@dataclass(frozen=True)
class Specialisation:
    """The input of one compilation.  `key` is equal for equal code, and holds nothing of the machine."""

    key: str
    entry: str
    source: Any
    """`triton.compiler.ASTSource`, or `KernelSource`."""
    options: Mapping[str, Any] | None
    """Triton's options; None for CUDA C++."""


@dataclass(frozen=True)
class RecordedLaunch:
    specialisation: Specialisation
    grid: tuple[int, int, int]
    threads: int | None
    """Threads per block; None if only the compiled kernel knows them (Triton)."""
    dynamic_shared_bytes: int | None


@dataclass
class Recorder:
    """Collects launches; the caller drains `launches`."""

    target: AnyTarget
    compilers: Mapping[str, str]
    """Compiler versions by language, part of every key."""
    launches: list[RecordedLaunch] = field(default_factory=list)

    def drain(self) -> list[RecordedLaunch]:
        found, self.launches = self.launches, []
        return found

    def compile_triton(self, source: Any, target: Any = None, options: Any = None, **_: Any) -> _StandInKernel:
        """The replacement of `triton.compiler.compile`."""
        chosen = dict(options or {})
        key = self._key("triton", _triton_parts(source, chosen))
        return _StandInKernel(self, Specialisation(key, source.name, source, chosen))

    def launch_cuda(
        self,
        source: nvrtc.KernelSource,
        *,
        grid: Any,
        block: Any,
        arguments: Sequence[Any] = (),
        device_index: int = 0,
        shared_bytes: int = 0,
        **_: Any,
    ) -> None:
        """The replacement of `nvrtc.launch`."""
        listener = current_listener()
        if listener is not None:
            listener.note(source.entry, None, (grid, block), arguments)
        key = self._key("cuda", _cuda_parts(source))
        threads = 1
        for size in _three(block):
            threads *= size
        self.launches.append(RecordedLaunch(Specialisation(key, source.entry, source, None), _three(grid), threads, shared_bytes))

    def _key(self, language: str, parts: Mapping[str, Any]) -> str:
        known = {"evidence": EVIDENCE_VERSION, "language": language, "target": self.target.name, "compiler": self.compilers[language]}
        content = {**known, **parts}
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


class _StandInKernel:
    """Replaces a compiled kernel in Triton's launch code: every way to launch it is recorded."""

    function = 0
    module = 0
    n_regs = 0
    n_spills = 0
    n_max_threads = 1024

    def __init__(self, recorder: Recorder, specialisation: Specialisation) -> None:
        self._recorder, self._specialisation = recorder, specialisation
        options = dict(specialisation.options or {})
        self.hash, self.name = specialisation.key, specialisation.entry
        self.src = specialisation.source
        self.asm: dict[str, Any] = {}
        self.metadata = types.SimpleNamespace(**{"shared": 0, "name": self.name, "hash": self.hash, **options})
        self.packed_metadata = (options.get("num_warps", 4), options.get("num_ctas", 1), 0)

    def _init_handles(self) -> None: ...

    def launch_metadata(self, *_: Any) -> None:
        return None

    def run(self, grid_0: int, grid_1: int = 1, grid_2: int = 1, *_: Any, **__: Any) -> None:
        if grid_0 * grid_1 * grid_2 > 0:  # Triton's launcher skips empty grids
            launch = RecordedLaunch(self._specialisation, (int(grid_0), int(grid_1), int(grid_2)), None, None)
            self._recorder.launches.append(launch)

    def __getitem__(self, grid: Any) -> Any:
        return lambda *_, **__: self.run(*_three(grid))


class _Driver:
    """The part of a Triton driver that launching needs."""

    def __init__(self, target: AnyTarget) -> None:
        from triton.backends.compiler import GPUTarget

        if isinstance(target, AmdTarget):
            self._target = GPUTarget("hip", target.name, target.wave)
        else:
            self._target = GPUTarget("cuda", target.capability, WARP)
        properties = {
            "multiprocessor_count": target.multiprocessors,
            "max_shared_mem": target.shared_per_block,
            "max_num_regs": target.registers,
            "warpSize": self._target.warp_size,
        }
        self.utils = types.SimpleNamespace(get_device_properties=lambda _: properties)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int = 0) -> int:
        return 0

    def set_current_device(self, _: int) -> None: ...

    def get_device_interface(self) -> Any:
        import torch

        return torch.cuda

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cuda", 0)


@contextmanager
def recording(target: AnyTarget, compilers: Mapping[str, str]) -> Iterator[Recorder]:
    """Inside the block, launches are recorded, and torch answers as on the target's GPU."""
    import triton.compiler
    import triton.runtime

    recorder = Recorder(target, compilers)
    triton.runtime.driver.set_active(_Driver(target))
    with (
        mock.patch.object(triton.compiler, "compile", recorder.compile_triton),
        mock.patch.object(nvrtc, "launch", recorder.launch_cuda),
        device(target),
    ):
        yield recorder


class _Calls(Listener):
    """Notes every operator and every launch with its scalar arguments, and not the code launched, which is compiled later."""

    def note(self, name: str, cubin: bytes | None, geometry: Sequence[Any], arguments: Iterable[Any]) -> None:
        self.launches += 1
        self.note_operator("launch", arguments, "")


def record(recorder: Recorder, kernel: Kernel, case: Case) -> tuple[list[RecordedLaunch], str]:
    """The launches of `kernel` for `case`, in order; and a digest of the torch operators between them and of the launches' scalars,
    empty where that is not known.

    Raises:
        RecordingError: the kernel launched nothing.
        Exception: any error of the kernel's launch code or its op.
    """
    import torch

    from ..registry.calling import bound_call

    op = kernel.op
    assert op is not None, "the loader binds the op"
    params = op.parse_params(case.params)
    generator = torch.Generator()
    try:
        buffers = op.buffers(params, device=torch.device("cuda", 0), generator=generator)
    except (RuntimeError, NotImplementedError):
        # Inputs made from other inputs' values need memory; on the host they have the same layouts.
        made = op.buffers(params, device=torch.device("cpu"), generator=generator.manual_seed(0))
        buffers = {name: on_device(tensor) for name, tensor in made.items()}
    recorder.drain()
    call = bound_call(op, kernel, dict(op.arguments(params, buffers)))
    with listening(_Calls()) as calls:
        call()
    launches = recorder.drain()
    if not launches:
        raise RecordingError(
            f"{kernel.id} launched nothing through Triton or fusebench.registry.nvrtc for {case.key}; static evidence needs one of the two"
        )
    # A launch outside `launchable` is recorded, but its arguments are not noted.
    return launches, (combined(calls.digests) or "") if calls.launches == len(launches) else ""


def _triton_parts(source: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """All inputs of the code: the function and the functions it calls, types, constants, known facts of arguments, options."""
    named = {name: value for name, value in options.items() if name not in ("extern_libs", "backend_name")}
    libraries = sorted(str(name) for name, _ in options.get("extern_libs") or ())  # their paths are the machine's
    return {
        "function": source.fn.cache_key,
        "entry": source.name,
        "signature": source.signature,
        "constants": sorted((str(path), _constant(value)) for path, value in source.constants.items()),
        "attributes": sorted((str(path), str(value)) for path, value in source.attrs.items()),
        "options": sorted((name, str(value)) for name, value in named.items()),
        "libraries": libraries,
    }


def _constant(value: Any) -> str:
    return str(getattr(value, "cache_key", value))


def _cuda_parts(source: nvrtc.KernelSource) -> dict[str, Any]:
    """All inputs of the code; a header that is not found here is the compiler's own, and its version is in the key."""
    file = source.file.resolve()
    contents, _ = cubin_cache.included(file)
    return {
        # By paths relative to the source, since absolute ones are the machine's.
        "sources": {os.path.relpath(path, file.parent): hashlib.sha256(content).hexdigest() for path, content in contents.items()},
        "entry": source.entry,
        "macros": source.macros,
    }


def _three(size: Any) -> tuple[int, int, int]:
    sizes = tuple(int(one) for one in size) if isinstance(size, tuple | list) else (int(size),)
    first, second, third = (*sizes, 1, 1)[:3]
    return first, second, third
