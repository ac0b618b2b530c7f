"""Plain functions as kernels: `@benchmark` in any Python file, and the op that is made of them on the fly.

The functions of one file compute the same thing.  They become kernels of one op, named after the file; the first one is the split chain
that speedups and errors are relative to.  Everything else, from the accuracy gate to the report, is that of any op.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import msgspec

from ..errors import KernelDeclarationError
from .kernel import Kernel
from .kernel_declaration import kernel
from .op import Buffers, Op
from .recording import record

if TYPE_CHECKING:
    import torch

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Benchmark:
    """A function that `@benchmark` marked, as it was written."""

    function: Callable[..., Any]
    inputs: Callable[..., Any] | None
    reference: Callable[..., Any] | None
    outputs: tuple[str, ...]
    overwrites: tuple[str, ...]
    minimum_bytes: Callable[..., int] | int | None
    name: str
    language: str


@overload
def benchmark(function: Function) -> Function: ...


@overload
def benchmark(
    *,
    inputs: Callable[..., Any] | None = None,
    reference: Callable[..., Any] | None = None,
    outputs: Sequence[str] = ("output",),
    overwrites: Sequence[str] = (),
    minimum_bytes: Callable[..., int] | int | None = None,
    name: str = "",
    language: str = "torch",
) -> Callable[[Function], Function]: ...


def benchmark(
    function: Function | None = None,
    *,
    inputs: Callable[..., Any] | None = None,
    reference: Callable[..., Any] | None = None,
    outputs: Sequence[str] = ("output",),
    overwrites: Sequence[str] = (),
    minimum_bytes: Callable[..., int] | int | None = None,
    name: str = "",
    language: str = "torch",
) -> Any:
    """Mark a function for `fusebench bench FILE.py`; it stays the function that it is.

    The first marked function of a file gives `inputs` and is the one that others are compared with.

    Args:
        inputs: returns a call's arguments, as one tensor, a tuple in the order of the function's parameters, or a mapping by name.  Its
            tensors are made on the device that is measured.  Its own parameters, each with a default, are the sizes of a case.
        reference: computes the outputs from the same arguments, floating-point tensors in float64; the first function unless given.
        outputs: names of the returned tensors.
        overwrites: names of the arguments that the functions overwrite instead.
        minimum_bytes: bytes that any implementation must move, or a function of the sizes; the bytes of the inputs and outputs unless
            given.
        name: of the kernel; the function's own name unless given.
        language: torch, triton or cuda.
    """

    def mark(function: Function) -> Function:
        given = (inputs, reference, tuple(outputs), tuple(overwrites), minimum_bytes)
        record(Benchmark(function, *given, name=name or function.__name__, language=language))
        return function

    return mark if function is None else mark(function)


def load_plain(file: Path, prefix: str, declared: list[Any]) -> tuple[Op, list[Kernel]]:
    """Execute `file` as the module `prefix`; its op, and its functions as kernels.

    As for a script, what lies beside the file can be imported.

    Raises:
        KernelDeclarationError: no function is marked, or the marks cannot work.
        Exception: whatever the file raises.
    """
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(prefix, file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[prefix] = module = importlib.util.module_from_spec(spec)
    before = len(declared)
    spec.loader.exec_module(module)
    marked = [one for one in declared[before:] if isinstance(one, Benchmark)]
    if not marked:
        raise KernelDeclarationError("no function is marked; put `@fusebench.benchmark` before those to compare")
    first, *others = marked
    if first.inputs is None:
        raise KernelDeclarationError(f"the first marked function, {first.name}, lacks inputs; write `@benchmark(inputs=...)`")
    for one in others:
        if one.inputs is not None:
            raise KernelDeclarationError(f"{first.name} and {one.name} both give inputs; functions of one file share those of the first")
    op_name = re.sub(r"\W+", "_", file.stem).strip("_").lower()
    op_name = op_name if op_name[:1].isalpha() else f"op_{op_name}"
    split_name = _kernel_name(first)
    made: Any = type("PlainOp", (PlainOp,), {"__module__": prefix, "name": op_name, "split_reference": f"{split_name}@1"})
    made.baselines = (made.split_reference,)
    op: Op = made(first)
    return op, [_as_kernel(one, op_name, "split" if one is first else "fused") for one in marked]


def _kernel_name(one: Benchmark) -> str:
    return re.sub(r"\W+", "_", one.name).strip("_").lower()


def _as_kernel(one: Benchmark, op: str, role: str) -> Kernel:
    return kernel(op, _kernel_name(one), version=1, role=role, language=one.language)(one.function)


class _Layout(NamedTuple):
    """An argument as `inputs` gives it: a tensor's layout, or any other value."""

    value: Any
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    dtype: Any = None

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * functools.reduce(int.__mul__, self.size, 1) if self.dtype is not None else 0

    @property
    def extent(self) -> int:
        """Elements between the first and the last, both included."""
        return 1 + sum((size - 1) * stride for size, stride in zip(self.size, self.stride, strict=True)) if 0 not in self.size else 0


class PlainOp(Op):
    """The op of a file's marked functions."""

    def __init__(self, first: Benchmark) -> None:
        assert first.inputs is not None
        self._first, self._inputs = first, first.inputs
        self._parameters = tuple(inspect.signature(first.function).parameters)
        unknown = [name for name in first.overwrites if name not in self._parameters]
        if unknown:
            raise KernelDeclarationError(f"{first.name}: overwrites names {unknown[0]!r}; its parameters are {', '.join(self._parameters)}")
        self.in_place = bool(first.overwrites)  # type: ignore[misc]
        self.outputs = first.overwrites or first.outputs  # type: ignore[misc]
        arguments = (f"Tensor{'(a!)' if name in first.overwrites else ''} {name}" for name in self._parameters)
        returned = "()" if self.in_place else "Tensor" if len(self.outputs) == 1 else f"({', '.join(['Tensor'] * len(self.outputs))})"
        self.schema = f"({', '.join(arguments)}) -> {returned}"  # type: ignore[misc]
        self.Params = _params_of(first)  # type: ignore[misc]
        self._layouts = functools.cache(self._find_layouts)
        self._output_bytes = functools.cache(self._find_output_bytes)

    def buffers(self, params: Any, *, device: torch.device, generator: torch.Generator, magnitude: float = 1.0) -> Buffers:
        import torch

        seed = int(torch.randint(2**62, (), generator=generator, device=device))
        made = {}
        for name, value in self._call_inputs(params, device, seed).items():
            layout = self._layouts(params)[name]
            if isinstance(value, torch.Tensor):
                there = value.detach().to(device)
                scaled = there * magnitude if there.is_floating_point() and magnitude != 1.0 else there
                if layout.stride == _contiguous(layout.size):
                    made[name] = scaled.contiguous()
                else:
                    made[name] = torch.zeros(layout.extent, dtype=value.dtype, device=device)
                    made[name].as_strided(layout.size, layout.stride).copy_(scaled)
        return made

    def arguments(self, params: Any, buffers: Buffers) -> Mapping[str, Any]:
        found = {}
        for name, layout in self._layouts(params).items():
            if layout.dtype is None:
                found[name] = layout.value
            elif layout.stride != _contiguous(layout.size):
                found[name] = buffers[name].as_strided(layout.size, layout.stride)
            else:
                found[name] = buffers[name]
        return found

    def reference(self, params: Any, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        wide = {name: _widened(value) for name, value in arguments.items()}
        function = self._first.reference or self._first.function
        try:
            returned = function(*wide.values())
        except Exception as error:
            if self._first.reference is not None:
                raise
            raise KernelDeclarationError(
                f"{self._first.name} does not take float64 tensors ({type(error).__name__}: {error}), so nothing says what is right; "
                "give a function that does, as `@benchmark(reference=...)`"
            ) from error
        values = [wide[name] for name in self.outputs] if self.in_place and returned is None else _as_sequence(returned)
        if len(values) != len(self.outputs):
            raise KernelDeclarationError(
                f"the reference returns {len(values)} tensors, expected {len(self.outputs)}: {', '.join(self.outputs)}; "
                "name them with `@benchmark(outputs=...)`"
            )
        return {name: value.double() for name, value in zip(self.outputs, values, strict=True)}

    def minimum_bytes(self, params: Any) -> int:
        given = self._first.minimum_bytes
        if given is not None:
            return given if isinstance(given, int) else int(given(**msgspec.structs.asdict(params)))
        return sum(layout.bytes for layout in self._layouts(params).values()) + self._output_bytes(params)

    def bytes_written(self, params: Any) -> int:
        try:
            return min(self._output_bytes(params), self.minimum_bytes(params))
        except KernelDeclarationError:  # a size that is known only to a call, whose `minimum_bytes` the file gives
            return super().bytes_written(params)

    def flops(self, params: Any) -> int:
        return 0  # not known of a plain function

    def shape(self, params: Any) -> str:
        sizes = " ".join(f"{name}={value}" for name, value in msgspec.structs.asdict(params).items())
        tensors = (
            f"{'x'.join(map(str, one.size))} {str(one.dtype).removeprefix('torch.')}" for one in self._layouts(params).values() if one.size
        )
        return sizes or next(tensors, "scalars")

    def _find_layouts(self, params: Any) -> dict[str, _Layout]:
        import torch

        try:
            made = self._call_inputs(params, torch.device("meta"), 0)
        except Exception:  # noqa: BLE001 - inputs that read values of their own cannot be made without memory
            made = self._call_inputs(params, torch.device("cpu"), 0)
        return {
            name: _Layout(None, tuple(one.shape), one.stride(), one.dtype) if isinstance(one, torch.Tensor) else _Layout(one)
            for name, one in made.items()
        }

    def _find_output_bytes(self, params: Any) -> int:
        import torch

        if self.in_place:
            return sum(self._layouts(params)[name].bytes for name in self.outputs)
        arguments = [
            torch.empty_strided(one.size, one.stride, dtype=one.dtype, device="meta") if one.dtype is not None else one.value
            for one in self._layouts(params).values()
        ]
        for function in (self._first.function, self._first.reference):
            if function is not None:
                try:
                    returned = _as_sequence(function(*arguments))
                except Exception:  # noqa: BLE001 - a launch cannot be made without memory; the reference may do without one
                    continue
                return sum(one.numel() * one.element_size() for one in returned)
        raise KernelDeclarationError(
            f"the size of the outputs of {self._first.name} cannot be told without calling it; give `@benchmark(reference=...)` of torch "
            "calls, or `minimum_bytes=...`"
        )

    def _call_inputs(self, params: Any, device: torch.device, seed: int) -> dict[str, Any]:
        """The arguments by name, made on `device`."""
        import torch

        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.device(device):
            torch.manual_seed(seed)
            made = self._inputs(**msgspec.structs.asdict(params))
        if isinstance(made, Mapping):
            named = {name: made[name] for name in self._parameters if name in made}
        else:
            values = list(made) if isinstance(made, tuple | list) else [made]
            named = dict(zip(self._parameters, values, strict=False))
            made = values
        if len(named) != len(self._parameters) or len(made) != len(self._parameters):
            raise KernelDeclarationError(
                f"inputs gives {len(made)} arguments, but {self._first.name} takes {len(self._parameters)}: {', '.join(self._parameters)}"
            )
        return named


def _params_of(first: Benchmark) -> type[msgspec.Struct]:
    """The parameters of `inputs`, as the op's Params."""
    fields = []
    assert first.inputs is not None
    for name, one in inspect.signature(first.inputs).parameters.items():
        if not isinstance(one.default, int | float | str):
            raise KernelDeclarationError(f"inputs: parameter {name!r} needs a default that is a number or a text, such as `{name}=4096`")
        fields.append((name, type(one.default), one.default))
    return msgspec.defstruct("Params", fields, frozen=True, forbid_unknown_fields=True, kw_only=True)


def _contiguous(size: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for one in reversed(size):
        strides.append(step)
        step *= max(1, one)
    return tuple(reversed(strides))


def _widened(value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    return value.double() if value.is_floating_point() and value.dtype != torch.float64 else value.clone()


def _as_sequence(returned: Any) -> Sequence[Any]:
    return returned if isinstance(returned, tuple | list) else (returned,)
