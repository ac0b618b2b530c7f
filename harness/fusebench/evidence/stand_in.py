"""Stands in for a GPU: tensors without memory that report to be on it, and torch's answers about it.

Kernels choose their launches by shapes, strides, alignment and the device's properties, never by values.  So their launch code runs on
tensors of torch's `meta` device.  These report a CUDA device and the addresses that CUDA's caching allocator would give: every buffer
starts on 512 bytes, and views start at their own offset.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from .amd_targets import AmdTarget
from .targets import WARP, AnyTarget

ALLOCATION_STEP = 512
"""Granularity of CUDA's caching allocator, in bytes; the timed buffers are placed by the same step."""
FIRST_ADDRESS = 2**40
"""Any multiple of the step far from zero."""


class _Addresses:
    """Gives every storage its own address range, in order of request; it keeps the storages, so that none is mistaken for a later one."""

    def __init__(self) -> None:
        self._starts: dict[int, tuple[int, Any]] = {}
        self._next = FIRST_ADDRESS

    def start(self, storage: torch.UntypedStorage) -> int:
        key = storage._cdata
        if key not in self._starts:
            self._starts[key] = (self._next, storage)
            self._next += -(-max(1, storage.nbytes()) // ALLOCATION_STEP) * ALLOCATION_STEP
        return self._starts[key][0]


_addresses = _Addresses()


class DeviceTensor(torch.Tensor):
    """A meta tensor that reports to be on GPU 0."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    def get_device(self) -> int:
        return 0

    def data_ptr(self) -> int:
        return _addresses.start(self.untyped_storage()) + int(self.storage_offset()) * self.element_size()


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """A device tensor laid out like `tensor` (a whole allocation; views are made of the result)."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta").as_subclass(DeviceTensor)


class _OnDevice(TorchFunctionMode):
    """Runs torch's CUDA functions on meta tensors, and returns device tensors."""

    def __torch_function__(self, func: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        named = {name: value for name, value in (kwargs or {}).items() if name != "generator"}  # nothing is drawn
        plain_args, plain_named = tree_map(_plain, (args, named))
        with torch._C.DisableTorchFunctionSubclass():
            return tree_map(_wrapped, func(*plain_args, **plain_named))


def _plain(value: Any) -> Any:
    if isinstance(value, DeviceTensor):
        return value.as_subclass(torch.Tensor)
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("meta")
    return "meta" if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


def _wrapped(value: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return value.as_subclass(DeviceTensor) if isinstance(value, torch.Tensor) and value.is_meta else value


@contextmanager
def device(target: AnyTarget) -> Iterator[None]:
    """Inside the block, torch answers as on a machine whose only GPU is the target's; nothing is computed there."""
    properties = _properties(target)
    stream = types.SimpleNamespace(
        cuda_stream=0, device=torch.device("cuda", 0), device_index=0, synchronize=lambda: None, wait_stream=lambda *_: None
    )
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda *_: 0,
        "set_device": lambda *_: None,
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: (target.major, target.minor),
        "get_device_name": lambda *_: target.gpu,
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "synchronize": lambda *_: None,
        "is_current_stream_capturing": lambda: False,
        "is_bf16_supported": lambda *_, **__: True,
    }
    # Triton's own launcher needs it; torch's builds without CUDA lack it.
    raw_stream = mock.patch.object(torch._C, "_cuda_getCurrentRawStream", answers["current_device"], create=True)
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        stack.enter_context(raw_stream)
        if isinstance(target, AmdTarget):  # torch's builds for ROCm tell by these that their `cuda` device is AMD's
            stack.enter_context(mock.patch.object(torch.version, "hip", "7.0"))
            stack.enter_context(mock.patch.object(torch.version, "cuda", None))
        stack.enter_context(_OnDevice())
        yield


def _properties(target: AnyTarget) -> types.SimpleNamespace:
    """The result of `torch.cuda.get_device_properties`, with its own names."""
    lanes = target.wave if isinstance(target, AmdTarget) else WARP
    return types.SimpleNamespace(
        name=target.gpu,
        gcnArchName=target.name,
        major=target.major,
        minor=target.minor,
        multi_processor_count=target.multiprocessors,
        total_memory=target.memory_bytes,
        L2_cache_size=target.l2_bytes,
        warp_size=lanes,
        max_threads_per_block=target.threads_per_block,
        max_threads_per_multi_processor=target.warps * lanes,
        regs_per_multiprocessor=target.registers,
        shared_memory_per_block=48 * 1024,
        shared_memory_per_block_optin=target.shared_per_block,
        shared_memory_per_multiprocessor=target.shared,
        is_integrated=False,
        is_multi_gpu_board=False,
    )
