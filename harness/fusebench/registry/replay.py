"""Replay launches by layout, so that a repeated call of a kernel costs the host little more than the launch itself.

The first call of a layout runs the kernel's own code: its checks, its plan, Triton's argument analysis. A recorder notes every launch made
through `launchable` or `nvrtc.launch`: the launched function, and the tensor whose address each argument held. Later calls of the layout
allocate the outputs and repeat the launches with the new addresses.

Replay is correct for a kernel whose launches depend only on the layouts of its tensors (shape, strides, dtype, device) and on its other
arguments, and which touches only its arguments and outputs. Its author declares this with `@kernel(..., replay=True)`. Some calls are never
replayed: addresses that are no multiple of 16 bytes, one tensor given twice, a workspace, a grid that is a function, anything on a CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from .machine_code import current_listener

MOST_LAYOUTS = 1024
"""Layouts kept per kernel; a model has a few dozen. A kernel with more forgets all of them, which costs one slow call each."""
ALIGNMENT = 16
"""In bytes. Triton and our CUDA C++ specialise on this alignment, so aligned calls of one layout run one specialisation."""

Run = Callable[..., None]
"""Launches with the arguments given, on the raw stream `stream`."""


class _Launch(NamedTuple):
    run: Run
    arguments: list[Any]
    """As launched, None in the place of every address."""
    addresses: tuple[tuple[int, int], ...]
    """(place in `arguments`, number of the tensor), inputs numbered before outputs."""


class _Output(NamedTuple):
    shape: tuple[int, ...]
    dtype: Any
    like: int | None
    """Number of a compact input of the same shape and dtype, which makes the cheapest allocation."""


class Layout(NamedTuple):
    """The launches that a call of one layout of arguments makes."""

    device: Any
    launches: tuple[_Launch, ...]
    outputs: tuple[_Output, ...]
    returns: type | None
    """What the kernel returns: tuple, one tensor (its type), or None."""


class Recorder:
    """Records the launches of one call."""

    def __init__(self) -> None:
        self.launches: list[tuple[Run, Sequence[Any]]] = []
        self.complete = True

    def note(self, run: Run, arguments: Sequence[Any]) -> None:
        """Record a launch of `run` with `arguments`, which include tensors."""
        self.launches.append((run, arguments))

    def give_up(self) -> None:
        """Note that a launch cannot be recorded, so that the call is never replayed."""
        self.complete = False

    def watch(self, jit_function: Any) -> Any:
        """`jit_function`, wrapped so that its launches are recorded."""
        return Watched(jit_function, self)


class Watched:
    """A Triton function that reports its launches to a recorder and to a machine-code listener, if there is one."""

    def __init__(self, jit_function: Any, recorder: Recorder | None) -> None:
        self._jit_function = jit_function
        self._recorder = recorder

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(*args: Any, **kwargs: Any) -> Any:
            compiled = self._jit_function[grid](*args, **kwargs)
            listener = current_listener()
            if listener is not None:
                listener.note(*_triton_code(compiled, grid), [*args, *sorted(kwargs.items())])
            if self._recorder is None:
                return compiled
            names = self._jit_function.arg_names[len(args) :]
            if compiled is None or callable(grid) or any(name not in kwargs for name in names):
                self._recorder.give_up()
            else:
                self._recorder.note(_triton_run(compiled, grid), [*args, *(kwargs[name] for name in names)])
            return compiled

        return launch


def _triton_code(compiled: Any, grid: Any) -> tuple[str, bytes | None, tuple[Any, ...]]:
    """Name, cubin and launch geometry of a compiled Triton kernel; no cubin in the interpreter, or for a grid that is a function."""
    if compiled is None or callable(grid):
        return "triton", None, ()
    metadata = compiled.metadata
    geometry = (tuple(grid), metadata.num_warps, metadata.shared, getattr(metadata, "cluster_dims", None))
    return compiled.name, compiled.asm.get("cubin"), geometry


def _triton_run(compiled: Any, grid: Sequence[int]) -> Run:
    """A function that launches a compiled Triton kernel as `compiled[grid](...)` does, without the look-ups that never change.

    The look-ups take 1.4 of the 5.6 us that a launch of 36 arguments costs on an H200's host.
    """
    from triton import knobs

    launcher, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    x, y, z = (*grid, 1, 1)[:3]
    normal = compiled[(x, y, z)]
    runtime = knobs.runtime

    def run(*values: Any, stream: int) -> None:
        enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
        if not getattr(enter, "calls", enter) and not getattr(leave, "calls", leave):
            launcher(x, y, z, stream, function, metadata, None, None, None, *values)
        else:  # a Triton profiler is active and expects a report of each launch
            normal(*values, stream=stream)

    return run


_recorder: ContextVar[Recorder | None] = ContextVar("fusebench_recorder", default=None)


def current_recorder() -> Recorder | None:
    """The recorder of the current call; None outside a first call."""
    return _recorder.get()


@contextmanager
def _recording() -> Iterator[Recorder]:
    recorder = Recorder()
    token = _recorder.set(recorder)
    try:
        yield recorder
    finally:
        _recorder.reset(token)


class Call(NamedTuple):
    """A call described by its layouts and addresses, without reading a value."""

    layouts: tuple[Any, ...]
    """Equal for calls with equal tensor layouts and equal other arguments, whatever the tensors' values and addresses."""
    inputs: list[Any]
    """The tensors among the arguments."""
    addresses: list[int]
    """Addresses of the tensors; fewer when a tensor has no address (a fake one)."""


def describe_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Layouts and addresses, in one pass. Beside the launch, this is most of the cost of a replayed call."""
    tensor, parameter = _tensor_types()
    parts: list[Any] = [tuple(kwargs)]
    inputs = []
    addresses = []
    for value in (*args, *kwargs.values()):
        kind = type(value)
        if kind is tensor or kind is parameter:
            parts += (kind, value.shape, value.stride(), value.dtype, value.device)
            inputs.append(value)
            addresses.append(value.data_ptr())
        elif isinstance(value, tensor):
            parts += (kind, value.shape, value.stride(), value.dtype, value.device)
            inputs.append(value)
        else:
            parts.append(value)
    return Call(tuple(parts), inputs, addresses)


@functools.cache
def _tensor_types() -> tuple[Any, Any]:
    """The types of tensors that own or view memory, and nothing else."""
    import torch

    return torch.Tensor, torch.nn.Parameter


class Replay:
    """A kernel's function, with the launches of each layout that it was called with."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._layouts: dict[tuple[Any, ...], Layout | None] = {}
        """None if a layout cannot be replayed."""

    def __call__(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the kernel's function with these arguments, which `call` describes, or repeat the launches of an earlier call."""
        try:
            layout = self._layouts[call.layouts]
        except KeyError:
            return self._first(call, args, kwargs)
        except TypeError:  # no kernel takes an unhashable argument; the kernel refuses it itself
            return self._function(*args, **kwargs)
        if layout is None or not aligned(call):
            return self._function(*args, **kwargs)
        return repeat(layout, call.inputs, call.addresses)

    def recorded(self, call: Call) -> Layout | None:
        """The launches of this call's layout, if they are recorded."""
        return self._layouts.get(call.layouts)

    def _first(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not aligned(call):
            return self._function(*args, **kwargs)
        with _recording() as recorder:
            returned = self._function(*args, **kwargs)
        if len(self._layouts) >= MOST_LAYOUTS:
            self._layouts.clear()
        self._layouts[call.layouts] = _written_down(recorder, call.inputs, returned)
        return returned


def aligned(call: Call) -> bool:
    """Whether every tensor has an address that is a multiple of ALIGNMENT."""
    together = 0
    for address in call.addresses:
        together |= address
    return together % ALIGNMENT == 0 and len(call.addresses) == len(call.inputs)


def repeat(layout: Layout, inputs: list[Any], addresses: list[int]) -> Any:
    """Repeat the launches of `layout` on these tensors and their addresses (a list that grows). Returns what the kernel returned."""
    import torch

    outputs = [
        torch.empty(shape, dtype=dtype, device=layout.device) if like is None else torch.empty_like(inputs[like])
        for shape, dtype, like in layout.outputs
    ]
    addresses += [output.data_ptr() for output in outputs]
    stream = torch._C._cuda_getCurrentRawStream(layout.device.index)
    for run, arguments, places in layout.launches:
        filled = arguments.copy()
        for place, number in places:
            filled[place] = addresses[number]
        run(*filled, stream=stream)
    if layout.returns is None:
        return None
    return tuple(outputs) if layout.returns is tuple else outputs[0]


def _written_down(recorder: Recorder, inputs: Sequence[Any], returned: Any) -> Layout | None:
    """The call in repeatable form; None when a launch argument is neither an input nor an output of the call."""
    from torch import Tensor

    outputs = [] if returned is None else list(returned) if isinstance(returned, tuple) else [returned]
    tensors = [*inputs, *outputs]
    if not recorder.complete or not inputs or not inputs[0].is_cuda or len({id(tensor) for tensor in tensors}) < len(tensors):
        return None
    if any(type(tensor) not in _tensor_types() or tensor.device != inputs[0].device for tensor in tensors):
        return None
    if not all(output.is_contiguous() and output.storage_offset() == 0 for output in outputs):
        return None
    numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
    launches = []
    for run, arguments in recorder.launches:
        places = [(place, argument) for place, argument in enumerate(arguments) if isinstance(argument, Tensor)]
        if any(id(argument) not in numbers for _, argument in places):
            return None
        template = [None if isinstance(argument, Tensor) else argument for argument in arguments]
        launches.append(_Launch(run, template, tuple((place, numbers[id(argument)]) for place, argument in places)))
    return Layout(
        inputs[0].device,
        tuple(launches),
        tuple(_Output(tuple(output.shape), output.dtype, _like(output, inputs)) for output in outputs),
        None if returned is None else type(returned),
    )


def _like(output: Any, inputs: Sequence[Any]) -> int | None:
    for number, tensor in enumerate(inputs):
        if tensor.shape == output.shape and tensor.dtype == output.dtype and tensor.is_contiguous():
            return number
    return None
