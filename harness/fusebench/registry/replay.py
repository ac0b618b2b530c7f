"""Launches remembered by layout, so that a repeated call of a kernel costs the host little more than the launch itself.

The first call of a layout runs the kernel's own code: its checks, its plan, Triton's argument analysis.  Meanwhile every launch made
through `launchable` or `nvrtc.launch` is written down: what was launched, and which argument held which tensor's address.  Later
calls of the layout allocate the outputs and launch the same again with the new addresses.

That is right for a kernel whose launches follow from the layouts of its tensors (shape, strides, dtype, device) and its other
arguments alone, and which touches no tensors but its arguments and its outputs; its author says so with `@kernel(..., replay=True)`.
What cannot be written down safely is never replayed: addresses off 16 bytes, one tensor given twice, a workspace, a grid that is a
function, anything on a CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from .machine_code import current_listener

MOST_LAYOUTS = 1024
"""Layouts kept per kernel; a model has a few dozen.  Past it all are forgotten, which costs one slow call each."""
ALIGNMENT = 16
"""Bytes; what Triton and our CUDA C++ specialise on, so that aligned calls of one layout run one specialisation."""

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


class _Layout(NamedTuple):
    device: Any
    launches: tuple[_Launch, ...]
    outputs: tuple[_Output, ...]
    returns: type | None
    """What the kernel returns: tuple, one tensor (its type), or None."""


class Recorder:
    """Writes down the launches of one call."""

    def __init__(self) -> None:
        self.launches: list[tuple[Run, Sequence[Any]]] = []
        self.complete = True

    def note(self, run: Run, arguments: Sequence[Any]) -> None:
        """A launch of `run` with `arguments`, tensors among them."""
        self.launches.append((run, arguments))

    def give_up(self) -> None:
        """Something was launched that cannot be written down."""
        self.complete = False

    def watch(self, jit_function: Any) -> Any:
        """`jit_function`, its launches written down."""
        return Watched(jit_function, self)


class Watched:
    """A Triton function whose launches are told to a recorder, and to whoever listens to machine code."""

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
    """Launch a compiled Triton kernel as its own `compiled[grid](...)` does, less the look-ups that never change.

    They take 1.4 of the 5.6 us that a launch of 36 arguments costs on an H200's host.
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
        else:  # a profiler of Triton's is watching, and wants to be told what is launched
            normal(*values, stream=stream)

    return run


_recorder: ContextVar[Recorder | None] = ContextVar("fusebench_recorder", default=None)


def current_recorder() -> Recorder | None:
    """The recorder of the call that is being made; None outside a first call."""
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
    """What tells one call from another without reading a value."""

    layouts: tuple[Any, ...]
    """A key that calls share whose tensors differ in nothing but their values and addresses, and whose other arguments are equal."""
    inputs: list[Any]
    """The tensors among the arguments."""
    addresses: list[int]
    """Theirs; fewer where a tensor has none (a fake one)."""


def describe_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Layouts and addresses, in one pass: this is most of what a replayed call costs beside the launch."""
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
        self._layouts: dict[tuple[Any, ...], _Layout | None] = {}
        """None where a layout cannot be replayed."""

    def __call__(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the kernel's function with these arguments, which `call` describes, or repeat the launches of an earlier call."""
        try:
            layout = self._layouts[call.layouts]
        except KeyError:
            return self._first(call, args, kwargs)
        except TypeError:  # an argument that cannot be hashed is none that a kernel takes; it says so itself
            return self._function(*args, **kwargs)
        if layout is None or not _aligned(call):
            return self._function(*args, **kwargs)
        return _again(layout, call.inputs, call.addresses)

    def remembers(self, call: Call) -> bool:
        """Whether the launches of a call of this layout are written down."""
        return self._layouts.get(call.layouts) is not None

    def _first(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not _aligned(call):
            return self._function(*args, **kwargs)
        with _recording() as recorder:
            returned = self._function(*args, **kwargs)
        if len(self._layouts) >= MOST_LAYOUTS:
            self._layouts.clear()
        self._layouts[call.layouts] = _written_down(recorder, call.inputs, returned)
        return returned


def _aligned(call: Call) -> bool:
    """Whether every tensor has an address, and a multiple of ALIGNMENT."""
    together = 0
    for address in call.addresses:
        together |= address
    return together % ALIGNMENT == 0 and len(call.addresses) == len(call.inputs)


def _again(layout: _Layout, inputs: list[Any], addresses: list[int]) -> Any:
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


def _written_down(recorder: Recorder, inputs: Sequence[Any], returned: Any) -> _Layout | None:
    """The call as it can be made again; None where something in it has no place among its inputs and outputs."""
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
    return _Layout(
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
