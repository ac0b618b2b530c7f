"""Times a person's own function on their own tensors, in this process, with the timers, placements and yardsticks of `fusebench run`.

Every tensor among the arguments is copied to a fresh random place for each placement, with its strides, and tensors that share memory keep
sharing it.  An argument that the function overwrites is restored before every call, outside the timed part.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from ..device import Device, settle
from ..device.cpu_process import measuring_on_cpu
from ..errors import UsageError
from ..registry import Kernel, Op
from ..runner.workers.protocol import Measured, MeasureTask, Progress, Reply, Task
from ..schema import Case, SamplingPlan
from ..timing.measure import measure_case
from ..timing.placement import STREAM, ArmSpec
from ..timing.timers.select import select_timer

if TYPE_CHECKING:
    import torch

ALIGNMENT = 512
"""Bytes to which the start of a buffer is rounded down, so that a view in its copy is aligned as it was: the granularity of CUDA's
caching allocator."""


class Call:
    """Arguments of a call, and the memory behind their tensors."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """
        Raises:
            UsageError: tensors on several GPUs.
        """
        from torch.utils._pytree import tree_flatten

        self._leaves, self._tree = tree_flatten((tuple(args), dict(kwargs)))
        tensors = [leaf for leaf in self._leaves if _is_plain(leaf)]
        self.device = _device_of([tensor.device for tensor in tensors])
        self.tensors = [tensor for tensor in tensors if tensor.device == self.device and tensor.numel()]
        self.spans: dict[str, tuple[torch.UntypedStorage, int, int]] = {}
        """By name of a buffer: the storage, and the first and the last byte + 1 that a tensor uses."""
        self._buffer_of: dict[int, str] = {}
        for tensor in self.tensors:
            storage = tensor.untyped_storage()
            name = self._buffer_of.setdefault(storage.data_ptr(), f"buffer{len(self._buffer_of)}")
            start, end = _extent(tensor)
            _, known_start, known_end = self.spans.get(name, (storage, start, end))
            self.spans[name] = (storage, min(start, known_start) // ALIGNMENT * ALIGNMENT, max(end, known_end))

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Copies of the bytes behind the tensors, by name of a buffer: uint8, flat."""
        return {name: self._bytes(name).clone() for name in self.spans}

    def changed_from(self, values: Mapping[str, torch.Tensor]) -> set[str]:
        """Names of the buffers that differ from `values`, bit for bit."""
        import torch

        return {name for name, value in values.items() if not torch.equal(value, self._bytes(name))}

    def placed(self, buffers: Mapping[str, torch.Tensor]) -> tuple[Any, Any]:
        """Positional and keyword arguments whose tensors lie in `buffers`; whatever is no tensor stays the same object."""
        from torch.utils._pytree import tree_unflatten

        mine = {id(tensor) for tensor in self.tensors}
        leaves = [self._view(leaf, buffers) if id(leaf) in mine else leaf for leaf in self._leaves]
        return cast("tuple[Any, Any]", tree_unflatten(leaves, self._tree))

    def bytes_moved(self, result: Any, changed: set[str]) -> tuple[int, int]:
        """Bytes that any implementation reads and writes: each tensor is read once; each result, and each overwritten argument, is written
        once."""
        from torch.utils._pytree import tree_flatten

        mine = set(self._buffer_of)
        read = sum(_size(tensor) for tensor in self.tensors)
        overwritten = sum(_size(tensor) for tensor in self.tensors if self._name(tensor) in changed)
        results = [leaf for leaf in tree_flatten(result)[0] if _is_plain(leaf) and leaf.numel()]
        new = sum(_size(leaf) for leaf in results if leaf.device == self.device and leaf.untyped_storage().data_ptr() not in mine)
        return read, overwritten + new

    def _name(self, tensor: torch.Tensor) -> str:
        return self._buffer_of[tensor.untyped_storage().data_ptr()]

    def _bytes(self, name: str) -> torch.Tensor:
        import torch

        storage, start, end = self.spans[name]
        return torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage, start, (end - start,), (1,))

    def _view(self, tensor: torch.Tensor, buffers: Mapping[str, torch.Tensor]) -> torch.Tensor:
        import torch

        name = self._name(tensor)
        size = tensor.element_size()
        offset = tensor.storage_offset() + (buffers[name].storage_offset() - self.spans[name][1]) // size
        view = torch.empty(0, dtype=tensor.dtype, device=self.device)
        view.set_(buffers[name].untyped_storage(), offset, tensor.size(), tensor.stride())
        return view.requires_grad_(tensor.requires_grad)


class _FunctionOp:
    """The part of an op that `timing.measure` uses: the call's memory as buffers."""

    schema = "() -> ()"

    def __init__(self, call: Call, values: Mapping[str, torch.Tensor], changed: set[str], moved: int, written: int) -> None:
        """`moved`: the minimum bytes; `written`: the part of them that is written."""
        self._call, self._values, self._changed, self._moved, self._written = call, values, sorted(changed), moved, written
        self.in_place = bool(changed)

    def buffers(self, params: Any, **_: Any) -> Mapping[str, torch.Tensor]:
        return self._values

    def arguments(self, params: Any, buffers: Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
        args, kwargs = self._call.placed(buffers)
        return {"args": args, "kwargs": kwargs, **{name: buffers[name] for name in self._changed}}

    def outputs_of(self, params: Any) -> Sequence[str]:
        return self._changed

    def minimum_bytes(self, params: Any) -> int:
        return self._moved

    def bytes_written(self, params: Any) -> int:
        return self._written


class _FunctionKernel:
    """A function as the arm of a measurement."""

    part = None

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.id, self._function = name, function

    def __call__(self, *, args: Any, kwargs: Any, **buffers: torch.Tensor) -> Any:
        return self._function(*args, **kwargs)


class InProcess:
    """Answers the measurement of functions in this process, in a worker's place."""

    def __init__(self, call: Call, functions: Mapping[str, Callable[..., Any]], device: Device, values: Mapping[str, torch.Tensor]) -> None:
        """`functions` by the name of their arm; `values`: the call's bytes before any call."""
        self._call, self._functions, self._device, self._values = call, functions, device, values
        self.changed: set[str] = set()
        self.minimum_bytes = self.bytes_written = 0

    def look_at(self, result: Any, minimum_bytes: int | None) -> None:
        """Learn what the calls overwrite, and how many bytes they move.

        Args:
            result: what the function returned on the person's own arguments, before which `values` were taken.
            minimum_bytes: as the person gives them; None for those of the tensors.
        """
        self.changed = self._call.changed_from(self._values)
        read, written = self._call.bytes_moved(result, self.changed)
        for function in list(self._functions.values())[1:]:
            import torch

            scratch = {name: value.clone() for name, value in self._values.items()}
            args, kwargs = self._call.placed(scratch)
            function(*args, **kwargs)
            self.changed |= {name for name, value in scratch.items() if not torch.equal(value, self._values[name])}
        self.minimum_bytes = read + written if minimum_bytes is None else minimum_bytes
        # The person's figure has the tensors' own mix of reads and writes.
        self.bytes_written = self.minimum_bytes * written // max(1, read + written)

    def ask(self, task: Task, on_progress: Callable[[Progress], None] = lambda progress: None) -> Reply:
        """Time the functions and, where bytes are moved, the yardstick; the reply is `Measured`.

        Raises:
            TimerError: the timer failed repeatedly.
        """
        import torch

        assert isinstance(task, MeasureTask), "functions are timed, not checked"
        op = cast("Op", _FunctionOp(self._call, self._values, self.changed, self.minimum_bytes, self.bytes_written))
        specs = [ArmSpec(STREAM, None)] if self.minimum_bytes else []
        specs += [ArmSpec(name, cast("Kernel", _FunctionKernel(name, function))) for name, function in self._functions.items()]
        timer, fallback = select_timer(self._device.kind, task.timer)
        warm_up: dict[str, Any] = {}

        with torch.cuda.device(self._call.device) if self._device.kind == "cuda" else measuring_on_cpu():
            timings = measure_case(
                task.case.key,
                op,
                None,
                specs,
                device=self._call.device,
                plan=task.plan,
                timer=timer,
                seed=task.seed,
                settle=lambda work: warm_up.update(settle(self._device.kind, self._device.uuid, work)),
            )
        return Measured.of(
            timings,
            timer=timer.name,
            timer_fallback=fallback,
            warm_up=warm_up,
            # A person's figure may be too high: what is faster than memory is then no proof of a warm cache.
            minimum_bytes={spec.name: self.minimum_bytes for spec in specs if spec.kernel is None},
        )


def task_of(name: str, plan: SamplingPlan) -> MeasureTask:
    """The measurement of a function, for the test `name`."""
    case = Case(suite="pytest", name=name, op="function", params={})
    return MeasureTask(case=case, plan=plan, timer="auto", seed=random.SystemRandom().randrange(2**31))


@contextmanager
def interpreted_launches() -> Iterator[list[int]]:
    """Count the launches in Triton's interpreter, whose times say nothing: yields a list that gets an entry for each."""
    seen: list[int] = []
    if os.environ.get("TRITON_INTERPRET", "0") in ("", "0"):
        yield seen
        return
    from triton.runtime.interpreter import GridExecutor

    known = GridExecutor.__call__

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(1)
        return known(self, *args, **kwargs)

    GridExecutor.__call__ = counted
    try:
        yield seen
    finally:
        GridExecutor.__call__ = known


def _is_plain(leaf: Any) -> bool:
    """Whether `leaf` is a tensor of torch's own kind, with memory of its own: subclasses may keep their data elsewhere."""
    import torch

    return type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.layout is torch.strided and leaf.device.type in ("cpu", "cuda")


def _device_of(devices: Sequence[torch.device]) -> torch.device:
    import torch

    gpus = {device for device in devices if device.type == "cuda"}
    if len(gpus) > 1:
        raise UsageError(f"gpu_benchmark: the arguments lie on {', '.join(sorted(map(str, gpus)))}; put all of them on one GPU")
    if gpus:
        return gpus.pop()
    # A function that makes or closes over its tensors works on the current GPU, if there is one.
    if not devices and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte, and last byte + 1, of the storage that the tensor uses."""
    first, size = int(tensor.storage_offset()), tensor.element_size()
    last = first + sum((int(count) - 1) * int(stride) for count, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return first * size, (last + 1) * size


def _size(tensor: torch.Tensor) -> int:
    """Bytes of the tensor's elements; those that are repeated by a stride of 0 count once."""
    start, end = _extent(tensor)
    return min(tensor.numel() * tensor.element_size(), end - start)
