"""Stand-ins for a kernel whose launches are recorded and for the driver that launches it again: no GPU is needed."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from fusebench.registry.launches import driver_launch, repeats, replay
from fusebench.registry.launches.replay import Replay, current_recorder

STREAM = 77


class Doubling:
    """A kernel's function, y = factor * x, whose launches are recorded; its own calls and the repeated launches are counted."""

    def __init__(self) -> None:
        self.calls = 0
        self.launched: list[tuple[int, ...]] = []
        self.hooks: Any = None
        self.packing: Any = None

    def __call__(self, x: torch.Tensor, other: torch.Tensor | None = None, *, factor: float = 2.0) -> torch.Tensor:
        self.calls += 1
        y = torch.empty(x.shape, dtype=x.dtype)
        recorder = current_recorder()
        if recorder is not None:
            recorder.note(self.run, [x, y, x.numel(), factor], self.packing, self.hooks)
        return y

    def run(self, *values: Any, stream: int) -> None:
        self.launched.append((*values, stream))


@pytest.fixture
def doubling(monkeypatch: pytest.MonkeyPatch) -> Doubling:
    """Replayed on a CPU, as on a GPU."""
    calls = {"empty": torch._C._dynamo.guards._empty_strided_cpu, "raw_stream": lambda index: STREAM}
    monkeypatch.setattr(replay, "on_gpu", lambda tensor: True)
    monkeypatch.setattr(repeats, "device_calls", lambda: calls)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM, raising=False)
    return Doubling()


def way(kernel: Replay, *args: Any, **kwargs: Any) -> str:
    """How a call goes: `repeated` by a written function, or as plain after a `miss` or a match that must be `plain`."""
    call = kernel.repeats.before(lambda args, kwargs, write: "miss" if write else "plain")
    returned = call(args, kwargs)
    return returned if isinstance(returned, str) else "repeated"


def repeated(kernel: Replay, *args: Any, **kwargs: Any) -> bool:
    return way(kernel, *args, **kwargs) == "repeated"


def warm(doubling: Doubling, *args: Any, **kwargs: Any) -> Replay:
    """Recorded by the first call, written by the second."""
    kernel = Replay(doubling)
    for _ in range(2):
        kernel.call(args, kwargs)
    assert doubling.calls == 1
    assert repeated(kernel, *args, **kwargs)
    return kernel


class Driver:
    """Stands for `cuLaunchKernelEx`: reads what the real one would read."""

    def __init__(self, kinds: tuple[type, ...], status: int = 0) -> None:
        self.seen: list[dict[str, Any]] = []
        self._kinds = kinds
        self.status = status
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self.call = prototype(self._launch)

    def _launch(self, config: int, function: int, arguments: int, extra: int | None) -> int:
        *sizes, stream, attributes, count = driver_launch.CONFIG.unpack(ctypes.string_at(config, driver_launch.CONFIG.size))
        pointers = (ctypes.c_void_p * len(self._kinds)).from_address(arguments)
        values = [kind.from_address(pointer).value for kind, pointer in zip(self._kinds, pointers, strict=True)]
        found = {"grid": tuple(sizes[:3]), "block": tuple(sizes[3:6]), "shared": sizes[6], "stream": stream, "function": function}
        if count:
            found["attribute"] = driver_launch.ATTRIBUTE.unpack(ctypes.string_at(attributes, driver_launch.ATTRIBUTE.size))
        self.seen.append(found | {"values": values})
        return self.status
