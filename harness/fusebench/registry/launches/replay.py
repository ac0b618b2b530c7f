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

from .driver_launch import Address, Packed, UnknownLaunchError, launcher, packed_triton
from .machine_code import current_listener
from .repeats import ALIGNMENT, Layout, Output, RepeatedLaunch, Repeats, Run, warn_once

MOST_LAYOUTS = 1024
"""Layouts kept per kernel; a model has a few dozen. A kernel with more forgets all of them, which costs one slow call each."""

Packing = Callable[[Sequence[Any], int], Packed]
"""Describes a launch for the driver, or raises `UnknownLaunchError`. It takes the arguments, with an `Address` in the place of each tensor,
and the device's index."""


class Recorder:
    """Records the launches of one call."""

    def __init__(self) -> None:
        self.launches: list[tuple[Run, Sequence[Any], Packing | None, Any]] = []
        """As `note` takes them."""
        self.complete = True

    def note(self, run: Run, arguments: Sequence[Any], packing: Packing | None = None, hooks: Any = None) -> None:
        """Record a launch of `run` with `arguments`, which include tensors.

        Args:
            packing: describes the launch for the driver; without it `run` makes every repeated launch.
            hooks: Triton's `knobs.runtime` for a launch that it makes.
        """
        self.launches.append((run, arguments, packing, hooks))

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
                listener.note(*_triton_code(compiled, grid), _runtime_arguments(self._jit_function, args, kwargs))
            if self._recorder is None:
                return compiled
            names = self._jit_function.arg_names[len(args) :]
            if compiled is None or callable(grid) or any(name not in kwargs for name in names):
                self._recorder.give_up()
            else:
                from triton import knobs

                values = [*args, *(kwargs[name] for name in names)]
                packing = functools.partial(packed_triton, compiled, grid)
                self._recorder.note(_triton_run(compiled, grid), values, packing, knobs.runtime)
            return compiled

        return launch


def _triton_code(compiled: Any, grid: Any) -> tuple[str, bytes | None, tuple[Any, ...]]:
    """Name, cubin and launch geometry of a compiled Triton kernel; no cubin in the interpreter, or for a grid that is a function."""
    if compiled is None or callable(grid):
        return "triton", None, ()
    metadata = compiled.metadata
    ways = (getattr(metadata, "launch_cooperative_grid", False), getattr(metadata, "launch_pdl", False))
    geometry = (tuple(grid), metadata.num_warps, metadata.shared, getattr(metadata, "cluster_dims", None), *map(bool, ways))
    return compiled.name, compiled.asm.get("cubin"), geometry


def _runtime_arguments(jit_function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that the launch passes to the machine code, by place and then by name.

    Constants of the compilation and options of the compiler are in the code.  Counted as arguments they would tell code apart that gained a
    constant and is the same to the last instruction.
    """
    parameters = getattr(jit_function, "params", None)
    if parameters is None:  # an autotuner, for example
        return [*args, *sorted(kwargs.items())]
    passed = {parameter.name for parameter in parameters if not parameter.is_constexpr}
    by_place = [value for parameter, value in zip(parameters, args, strict=False) if parameter.name in passed]
    return [*by_place, *sorted((name, value) for name, value in kwargs.items() if name in passed)]


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


_NEW = Layout(None, (), (), None)


class Replay:
    """A kernel's function, with the launches of each layout that it was called with."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._layouts: dict[tuple[Any, ...], Layout | None] = {}
        """None if a layout cannot be replayed."""
        self.repeats = Repeats()
        self.call = self.repeats.before(self._plain)
        """Calls the kernel's function with arguments, given as a tuple and a mapping, or repeats the launches of an earlier call."""

    def _plain(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], write: bool) -> Any:
        return self.described(describe_call(args, kwargs), args, kwargs, write=write)

    def described(self, call: Call, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, write: bool) -> Any:
        """As `self.call`, for arguments that `call` describes.

        Args:
            write: whether to write a function for a recorded layout, so that the next such call is quicker.
        """
        try:
            layout = self._layouts.get(call.layouts, _NEW)
        except TypeError:  # no kernel takes an unhashable argument; the kernel refuses it itself
            layout = None
        if layout is _NEW:
            return self._first(call, args, kwargs)
        if layout is None or not aligned(call):
            return self._function(*args, **kwargs)
        if write:
            self.repeats.add(layout, args, kwargs)
        return repeat(layout, call.addresses)

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


def repeat(layout: Layout, addresses: list[int]) -> Any:
    """Repeat the launches of `layout` on tensors at these addresses (a list that grows). Returns what the kernel returned."""
    import torch

    outputs = [torch.empty(output.shape, dtype=output.dtype, device=layout.device) for output in layout.outputs]
    addresses += [output.data_ptr() for output in outputs]
    stream = torch._C._cuda_getCurrentRawStream(layout.device.index)
    for launch in layout.launches:
        filled = launch.arguments.copy()
        for place, number in launch.addresses:
            filled[place] = addresses[number]
        launch.run(*filled, stream=stream)
    if layout.returns is None:
        return None
    return tuple(outputs) if layout.returns is tuple else outputs[0]


def _written_down(recorder: Recorder, inputs: Sequence[Any], returned: Any) -> Layout | None:
    """The call in repeatable form; None when a launch argument is neither an input nor an output of the call."""
    from torch import Tensor

    outputs = [] if returned is None else list(returned) if isinstance(returned, tuple) else [returned]
    tensors = [*inputs, *outputs]
    if not recorder.complete or not inputs or not on_gpu(inputs[0]) or len({id(tensor) for tensor in tensors}) < len(tensors):
        return None
    if any(type(tensor) not in _tensor_types() or tensor.device != inputs[0].device for tensor in tensors):
        return None
    if not all(output.is_contiguous() and output.storage_offset() == 0 for output in outputs):
        return None
    numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
    device = inputs[0].device
    launches = []
    for run, arguments, packing, hooks in recorder.launches:
        places = [(place, argument) for place, argument in enumerate(arguments) if isinstance(argument, Tensor)]
        if any(id(argument) not in numbers for _, argument in places):
            return None
        template = [None if isinstance(argument, Tensor) else argument for argument in arguments]
        addresses = tuple((place, numbers[id(argument)]) for place, argument in places)
        launches.append(_direct(RepeatedLaunch(run, template, addresses, hooks), packing, device.index))
    return Layout(
        device,
        tuple(launches),
        tuple(Output(tuple(output.shape), output.stride(), output.dtype) for output in outputs),
        None if returned is None else type(returned),
    )


def on_gpu(tensor: Any) -> bool:
    """Whether calls on this tensor's device can be replayed."""
    return bool(tensor.is_cuda)


def _direct(launch: RepeatedLaunch, packing: Packing | None, device_index: int) -> RepeatedLaunch:
    """`launch`, with the way through the driver where every detail of it is known."""
    if packing is None:
        return launch._replace(plain_because="its kernel does not describe its launches")
    used = sorted({number for _, number in launch.addresses})
    values = launch.arguments.copy()
    for place, number in launch.addresses:
        values[place] = Address(used.index(number))
    try:
        packed = packing(values, device_index)
    except UnknownLaunchError as error:
        warn_once(str(error))
        return launch._replace(plain_because=str(error))
    return launch._replace(direct=launcher(packed), numbers=tuple(used))
