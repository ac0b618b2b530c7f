"""Launch a loaded kernel by one call of the CUDA driver, with everything but stream and addresses packed beforehand.

A launch by Triton 3.6 to 3.9 or by cuda-core reads every argument again. A repeated launch changes only stream and addresses. So this
module keeps a block of memory per launch: the driver's `CUlaunchConfig`, the pointers to the arguments, and the arguments. A call writes
stream and addresses into it and calls `cuLaunchKernelEx` through ctypes. No compiler is needed.

It takes a launch that it knows in every detail, and otherwise says why not (`UnknownLaunchError`); such a launch goes through
the launcher of its language.
"""

from __future__ import annotations

import ctypes
import functools
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Launch = Callable[..., None]
"""Called with a raw stream and the addresses."""

CONFIG = struct.Struct("=7I4xQQI4x")
"""`CUlaunchConfig` of cuda.h: grid, block, bytes of dynamic shared memory, stream, attributes, number of attributes."""
STREAM_OFFSET = 32
"""Of `hStream` in `CUlaunchConfig`; the attributes and their number follow, then the addresses."""
ATTRIBUTE = struct.Struct("=I4xI60x")
"""`CUlaunchAttribute` of cuda.h with a 32-bit value."""
PROGRAMMATIC_STREAM_SERIALIZATION = 6
"""`CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`: programmatic dependent launch."""
INVALID_CONTEXT = 201
"""`CUDA_ERROR_INVALID_CONTEXT`: the calling thread has not used the GPU before."""
SLOT = 8
"""Bytes per argument: the largest argument that is packed."""

TRITON_VERSIONS = ((3, 6), (3, 9))
"""First and last version whose kernels are known to take their arguments and then two pointers to scratch memory, null where unused."""
HIDDEN_POINTERS = 2
TRITON_CODES = {
    "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u8": "B", "u16": "H", "u32": "I", "u64": "Q", "fp32": "f", "fp64": "d",
}  # fmt: skip
"""`struct` codes of Triton's scalar types, as its launcher passes them."""
USUAL_METADATA = {
    "num_ctas": 1, "cluster_dims": (1, 1, 1), "launch_cooperative_grid": False, "global_scratch_size": 0, "profile_scratch_size": 0,
    "instrumentation_mode": "", "tensordesc_meta": (),
}  # fmt: skip
"""Of a compiled kernel: any other value asks for another form of launch. A version may lack an entry."""


class Geometry(NamedTuple):
    """Where and how a kernel runs."""

    grid: tuple[int, int, int]
    block: int
    """Threads per block."""
    shared: int
    """Bytes of dynamic shared memory."""
    dependent: bool = False
    """Whether the launch may begin before the launch before it has ended (programmatic dependent launch)."""


class Packed(NamedTuple):
    """A launch with its scalars packed; the addresses are given by the call."""

    name: str
    function: int
    """The driver's handle."""
    geometry: Geometry
    arguments: tuple[int | bytes, ...]
    """Per argument of the kernel: the place of its address among the call's addresses, or a scalar's bytes."""
    device_index: int
    owner: Any
    """Keeps the function loaded."""


class UnknownLaunchError(Exception):
    """The launch cannot be packed; the message says why."""


class _Block(NamedTuple):
    memory: bytearray
    config: ctypes.c_void_p
    arguments: ctypes.c_void_p


def launcher(packed: Packed, call: Callable[..., int] | None = None) -> Launch:
    """A function of a raw stream and the addresses that launches `packed`. Threads may share it.

    Args:
        call: `cuLaunchKernelEx`; the driver's own unless given.

    Raises (the function):
        RuntimeError: the driver refused the launch, or reports an earlier failure.
    """
    launch_kernel = call if call is not None else driver().cuLaunchKernelEx
    function = ctypes.c_void_p(packed.function)
    count = 1 + max((place for place in packed.arguments if isinstance(place, int)), default=-1)
    attributes = ctypes.create_string_buffer(ATTRIBUTE.pack(PROGRAMMATIC_STREAM_SERIALIZATION, 1) if packed.geometry.dependent else b"")
    attributes_at, attribute_count = ctypes.addressof(attributes), int(packed.geometry.dependent)
    write = struct.Struct(f"=QQI4x{count}Q").pack_into
    blocks: list[_Block] = []
    """Not in use by a thread now. Taking one and giving it back are atomic."""

    def launch(stream: int, *addresses: int) -> None:
        try:
            block = blocks.pop()
        except IndexError:
            block = _block(packed, count)
        memory, config, arguments = block
        write(memory, STREAM_OFFSET, stream, attributes_at, attribute_count, *addresses)
        status = launch_kernel(config, function, arguments, None)
        if status == INVALID_CONTEXT:
            _enter_context(packed.device_index)
            status = launch_kernel(config, function, arguments, None)
        blocks.append(block)
        if status:
            raise RuntimeError(f"launch of {packed.name}: {described_status(status)}")

    launch.attributes = attributes  # type: ignore[attr-defined]  # the blocks hold its address
    launch.packed = packed  # type: ignore[attr-defined]
    return launch


def _block(packed: Packed, count: int) -> _Block:
    """The launch's config, then a slot per address and per scalar, then a pointer to the slot of each argument."""
    scalars = [value for value in packed.arguments if isinstance(value, bytes)]
    slots = CONFIG.size + SLOT * (count + len(scalars))
    memory = bytearray(slots + SLOT * len(packed.arguments))
    start = ctypes.addressof((ctypes.c_char * len(memory)).from_buffer(memory))
    geometry = packed.geometry
    CONFIG.pack_into(memory, 0, *geometry.grid, geometry.block, 1, 1, geometry.shared, 0, 0, 0)
    next_scalar = CONFIG.size + SLOT * count
    for number, value in enumerate(packed.arguments):
        if isinstance(value, bytes):
            at = next_scalar
            memory[at : at + len(value)] = value
            next_scalar += SLOT
        else:
            at = CONFIG.size + SLOT * value
        struct.pack_into("=Q", memory, slots + SLOT * number, start + at)
    return _Block(memory, ctypes.c_void_p(start), ctypes.c_void_p(start + slots))


@functools.cache
def driver() -> Any:
    """The CUDA driver's library, as torch has loaded it."""
    return ctypes.CDLL("libcuda.so.1")


def _enter_context(device_index: int) -> None:
    """Make the device's primary context current in this thread, as Triton's launcher does."""
    context = ctypes.c_void_p()
    library = driver()
    library.cuDevicePrimaryCtxRetain(ctypes.byref(context), ctypes.c_int(device_index))
    library.cuCtxSetCurrent(context)


def described_status(status: int) -> str:
    """Such as `CUDA_ERROR_INVALID_VALUE (1): invalid argument`."""
    texts = []
    for look_up in (driver().cuGetErrorName, driver().cuGetErrorString):
        text = ctypes.c_char_p()
        look_up(ctypes.c_int(status), ctypes.byref(text))
        texts.append(text.value.decode() if text.value else "unknown")
    return f"{texts[0]} ({status}): {texts[1]}"


def packed_triton(compiled: Any, grid: Sequence[int], values: Sequence[Any], device_index: int) -> Packed:
    """A launch of a loaded Triton kernel.

    Args:
        values: the arguments in the kernel's order, constants included, with an `Address` in the place of each tensor.

    Raises:
        UnknownLaunchError: it differs from the launches that this module knows.
    """
    import triton

    first, last = TRITON_VERSIONS
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    known = ".".join(map(str, first)), ".".join(map(str, last))
    _expect(first <= version <= last, "triton", triton.__version__, f"{known[0]} to {known[1]}")
    metadata = compiled.metadata
    _expect(metadata.target.backend == "cuda", "backend", metadata.target.backend, "cuda")
    for name, usual in USUAL_METADATA.items():
        found = getattr(metadata, name, None)
        found = tuple(found) if isinstance(found, list) else found
        _expect(not found or found == usual, name, found, usual)
    types = list(compiled.src.signature.values())
    _expect(len(types) == len(values), "number of arguments", len(values), len(types))
    arguments = [_packed_value(kind, value) for kind, value in zip(types, values, strict=True) if kind != "constexpr"]
    arguments += [bytes(SLOT)] * HIDDEN_POINTERS
    sizes = [len(one) if isinstance(one, bytes) else SLOT for one in arguments]
    found_sizes = parameter_sizes(compiled.asm.get("ptx", ""))
    _expect(found_sizes == sizes, "sizes of the parameters in the PTX", found_sizes, sizes)
    x, y, z = (*(int(size) for size in grid), 1, 1)[:3]
    _expect(min(x, y, z) > 0, "grid", (x, y, z), "at least one program")
    geometry = Geometry(
        (x, y, z), metadata.target.warp_size * metadata.num_warps, metadata.shared, bool(getattr(metadata, "launch_pdl", 0))
    )
    return Packed(compiled.name, compiled.function, geometry, tuple(arguments), device_index, compiled)


def packed_cuda(kernel: Any, name: str, geometry: Geometry, values: Sequence[Any], device_index: int) -> Packed:
    """A launch of cuda-core's loaded kernel, whose arguments the driver describes (from CUDA 12.4).

    Args:
        values: ints (64-bit), ctypes or numpy scalars, with an `Address` in the place of each tensor.

    Raises:
        UnknownLaunchError: it differs from the launches that this module knows.
    """
    arguments = [int(value) if isinstance(value, Address) else _bytes_of(value) for value in values]
    try:
        found = [one.size for one in kernel.arguments_info]
    except Exception as error:
        raise UnknownLaunchError(f"the driver does not describe the arguments of {name}: {error}") from error
    sizes = [len(one) if isinstance(one, bytes) else SLOT for one in arguments]
    _expect(found == sizes and max(sizes, default=0) <= SLOT, "sizes of the arguments", sizes, f"{found}, each at most {SLOT}")
    return Packed(name, int(kernel.handle), geometry, tuple(arguments), device_index, kernel)


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, int):
        return struct.pack("=q", value)
    return bytes(value.tobytes() if hasattr(value, "tobytes") else value)


def _expect(held: bool, what: str, found: Any, expected: Any) -> None:
    if not held:
        raise UnknownLaunchError(f"{what}: found {found}, expected {expected}")


class Address(int):
    """The place of an argument's address among the addresses of the call."""


def _packed_value(kind: Any, value: Any) -> int | bytes:
    """A place among the call's addresses, or the bytes of a scalar of Triton's type `kind`."""
    if isinstance(kind, str) and kind.startswith("*") and isinstance(value, Address):
        return int(value)
    code = TRITON_CODES.get(kind)
    usual = code is not None and isinstance(value, int | float) and not isinstance(value, Address)
    _expect(usual, "argument", f"{value!r} of type {kind}", f"a tensor as a pointer, or a number as one of {', '.join(TRITON_CODES)}")
    return struct.pack(f"={code}", value)


_SIZES = {f"{kind}{8 * size}": size for size in (1, 2, 4, 8) for kind in "usb"} | {"f32": 4, "f64": 8}
"""Bytes of PTX's types of parameters."""


def parameter_sizes(ptx: str) -> list[int] | None:
    """Bytes of each parameter of the one kernel in `ptx`; None unless it is one kernel of scalars and pointers."""
    entries = re.findall(r"\.entry\s+\S+?\s*\((.*?)\)", ptx, flags=re.DOTALL)
    if len(entries) != 1:
        return None
    sizes = [_SIZES.get(kind) for kind in re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)", entries[0])]
    return None if None in sizes else sizes  # type: ignore[return-value]
