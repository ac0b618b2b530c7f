"""Repeated calls at the price of the launch: a function per layout, written for it and compiled once, as `dataclasses` writes `__init__`.

Such a function compares the arguments with those of the recorded call, allocates the outputs and launches. torch's own guards
(`TensorGuards`, which compiled graphs use) compare all tensors in one call: type, dtype, device, sizes, strides, and the state of autograd
and of dispatch modes. So a call inside `vmap`, under a dispatch mode or with fake tensors never matches. Beside the call, `replay` knows
every layout and is slower; it takes what matches none of the functions.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, NamedTuple

from .driver_launch import Launch

MISS = object()
"""The call is of another layout."""
PLAIN = object()
"""The call is of this layout but needs the plain path: an address off the alignment, a profiler's hook, another current device."""
ALIGNMENT = 16
"""In bytes. Triton and our CUDA C++ specialise on this alignment, so aligned calls of one layout run one specialisation."""
MOST_PER_SHAPE = 8
"""Functions kept for one shape of the first argument; they are tried one after the other."""
MOST_SHAPES = 1024
"""Shapes kept; a model has a few dozen. Another one forgets all of them, which costs one slow call each."""

Repeat = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]
"""Takes a call's arguments. Returns what the kernel returned, MISS or PLAIN."""


Run = Callable[..., None]
"""Launches with the arguments given, on the raw stream `stream`."""


class RepeatedLaunch(NamedTuple):
    """One launch of a recorded call."""

    run: Run
    arguments: list[Any]
    """As launched, None in the place of every address."""
    addresses: tuple[tuple[int, int], ...]
    """(place in `arguments`, number of the tensor), inputs numbered before outputs."""
    hooks: Any = None
    """Triton's `knobs.runtime`, whose hooks want to hear of each launch; None for other languages."""
    direct: Launch | None = None
    """Launches by the driver, on a stream and the addresses of the tensors `numbers`."""
    numbers: tuple[int, ...] = ()
    plain_because: str = ""
    """Why there is no `direct`."""


class Output(NamedTuple):
    """A tensor that a recorded call allocated and returned."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any


class Layout(NamedTuple):
    """The launches that a call of one layout of arguments makes."""

    device: Any
    launches: tuple[RepeatedLaunch, ...]
    outputs: tuple[Output, ...]
    returns: type | None
    """What the kernel returns: tuple, one tensor (its type), or None."""


class Repeats:
    """The functions of one kernel or dispatcher, by the shape of the first argument."""

    def __init__(self, output_places: Sequence[tuple[int, str]] | None = None) -> None:
        """
        Args:
            output_places: place and name of the arguments to return, without those that are None; what the kernel returned unless given.
        """
        self._output_places = output_places
        self._by_shape: dict[Any, list[Repeat]] = {}

    def before(self, plain: Callable[[tuple[Any, ...], Mapping[str, Any], bool], Any]) -> Repeat:
        """A function of a call's arguments that repeats the call if a function knows it, and calls `plain` otherwise.

        Args:
            plain: also takes whether a function should be written for the call: True after a MISS.
        """
        by_shape = self._by_shape  # of the closure, like the rest: each look-up of an attribute costs as much as a tensor's address

        def call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            try:
                known: Sequence[Repeat] = by_shape[args[0].shape]
            except (LookupError, AttributeError, TypeError):  # a new shape, no tensor, or a size that is a symbol, which has no hash
                known = ()
            for repeat in known:
                returned = repeat(args, kwargs)
                if returned is not MISS:
                    return returned if returned is not PLAIN else plain(args, kwargs, False)
            return plain(args, kwargs, True)

        return call

    def add(self, layout: Layout, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Write the function for this call, of which `layout` holds the launches. Nothing where torch has no guards of this form."""
        shape = getattr(args[0], "shape", None) if args else None
        if shape is None:
            return
        if len(self._by_shape) >= MOST_SHAPES:
            self._by_shape.clear()
        known = self._by_shape.setdefault(shape, [])
        if len(known) < MOST_PER_SHAPE:
            written = written_repeat(layout, args, kwargs, self._output_places)
            if written is not None:
                known.append(written)

    def clear(self) -> None:
        """Forget every function."""
        self._by_shape.clear()


def written_repeat(
    layout: Layout, args: tuple[Any, ...], kwargs: Mapping[str, Any], output_places: Sequence[tuple[int, str]] | None
) -> Repeat | None:
    """The function that repeats `layout` for calls equal to this one in everything but values and addresses."""
    import torch

    names: dict[str, Any] = {"MISS": MISS, "PLAIN": PLAIN}
    given = {f"a{number}": value for number, value in enumerate(args)}
    given |= {f"k{number}": value for number, value in enumerate(kwargs.values())}
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    check = _guard(list(tensors.values()))
    calls = device_calls()
    if check is None or calls is None:
        return None
    names.update(check=check, **calls)
    code = ["def repeat(args, kwargs):", " try:"]
    code += [f"  {', '.join(f'a{number}' for number in range(len(args)))}, = args"]
    for number, name in enumerate(kwargs):
        names[f"n{number}"] = name
        code.append(f"  k{number} = kwargs[n{number}]")
    code += [" except (ValueError, KeyError):", "  return MISS"]
    tests = [f"len(kwargs) != {len(kwargs)}"]
    for name, value in given.items():
        if value is None or isinstance(value, bool):
            tests.append(f"{name} is not {value}")
        elif name not in tensors:
            names[f"v_{name}"], names[f"t_{name}"] = value, type(value)
            tests.append(f"({name} is not v_{name} and (type({name}) is not t_{name} or {name} != v_{name}))")
    tests.append(f"not check({', '.join(tensors)})")
    code += [f" if {' or '.join(tests)}:", "  return MISS"]

    addresses = [f"p{number}" for number in range(len(tensors))]
    code += [f" {address} = {name}.data_ptr()" for address, name in zip(addresses, tensors, strict=True)]
    plain = [f"({' | '.join(addresses)}) & {ALIGNMENT - 1}"]
    if "current_device" in names:
        plain.append(f"current_device() != {layout.device.index}")
    if any(launch.hooks is not None for launch in layout.launches):
        plain.append(_hooked(names, next(launch.hooks for launch in layout.launches if launch.hooks is not None)))
    code += [f" if {' or '.join(plain)}:", "  return PLAIN"]

    for number, output in enumerate(layout.outputs):
        names[f"size{number}"], names[f"stride{number}"], names[f"dtype{number}"] = output.shape, output.strides, output.dtype
        code += [f" o{number} = empty(size{number}, stride{number}, dtype{number})", f" p{len(addresses)} = o{number}.data_ptr()"]
        addresses.append(f"p{len(addresses)}")
    code.append(f" stream = raw_stream({layout.device.index})")
    for number, launch in enumerate(layout.launches):
        if launch.direct is not None:
            names[f"launch{number}"] = launch.direct
            code.append(f" launch{number}({', '.join(['stream', *(addresses[place] for place in launch.numbers)])})")
        else:
            names[f"launch{number}"] = launch.run
            places = dict(launch.addresses)
            values = []
            for place, value in enumerate(launch.arguments):
                names[f"c{number}_{place}"] = value
                values.append(addresses[places[place]] if place in places else f"c{number}_{place}")
            code.append(f" launch{number}({', '.join([*values, 'stream=stream'])})")
    code.append(f" return {_returned(layout, args, kwargs, output_places)}")
    exec(_compiled("\n".join(code)), names)
    return names["repeat"]  # type: ignore[no-any-return]


def _returned(layout: Layout, args: tuple[Any, ...], kwargs: Mapping[str, Any], output_places: Sequence[tuple[int, str]] | None) -> str:
    if output_places is not None:
        keywords = list(kwargs)
        found = {
            f"a{place}" if place < len(args) else f"k{keywords.index(name)}": args[place] if place < len(args) else kwargs[name]
            for place, name in output_places
        }
        return f"({''.join(f'{name}, ' for name, value in found.items() if value is not None)})"
    if layout.returns is None:
        return "None"
    outputs = [f"o{number}" for number in range(len(layout.outputs))]
    return f"({', '.join(outputs)},)" if layout.returns is tuple else outputs[0]


@functools.lru_cache(maxsize=256)
def _compiled(source: str) -> CodeType:
    """Layouts of one form share their source; the constants are names."""
    return compile(source, "<repeated call>", "exec")


def _hooked(names: dict[str, Any], runtime: Any) -> str:
    """Whether a profiler waits for Triton's launches: another hook than now, or one in the chain."""
    names["runtime"] = runtime
    tests = []
    for hook in ("launch_enter_hook", "launch_exit_hook"):
        names[hook] = getattr(runtime, hook)
        tests.append(f"runtime.{hook} is not {hook}")
        tests += [f"{hook}.calls"] if hasattr(names[hook], "calls") else [f"{hook} is not None"]
    return " or ".join(tests)


def _guard(tensors: Sequence[Any]) -> Callable[..., bool] | None:
    """A check of all tensors by torch's guards, which keep no tensor alive. None under a dispatch mode, which must see the allocations, and
    inside `vmap` and its like: their state would become a part of the check."""
    import torch

    if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None:
        return None

    guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    try:
        made = guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        return made.check if made.check(*tensors) else None
    except (AttributeError, TypeError) as error:  # a torch whose guards have another form
        warn_once(f"torch {torch.__version__} has no guards of the known form ({error})")
        return None


def device_calls() -> dict[str, Callable[..., Any]] | None:
    """`empty(size, stride, dtype)`, `raw_stream(index)` and, with several devices, `current_device()`; None where torch lacks one.

    `empty` is the allocation that Inductor's code makes, on the current device.
    """
    import torch

    try:
        calls = {"empty": torch._C._dynamo.guards._empty_strided_cuda, "raw_stream": torch._C._cuda_getCurrentRawStream}  # type: ignore[attr-defined]
        if torch.cuda.device_count() > 1:
            calls["current_device"] = torch._C._cuda_getDevice
    except AttributeError as error:
        warn_once(f"torch {torch.__version__} lacks a call ({error})")
        return None
    return calls


@functools.cache
def warn_once(reason: str) -> None:
    """Say why repeated calls do not take the quickest way."""
    warnings.warn(f"repeated calls cost the host more than they could: {reason}", RuntimeWarning, stacklevel=2)
