"""CUDA C++ kernels of this repository on the CPU: their arithmetic, barriers and bulk copies, without a GPU.

The kernel's source is compiled by the host's C++ compiler with `cuda_on_cpu.hpp`. Inline assembly is replaced statement by statement; one
that is not known is an error. What this shows: that results are right, that no barrier or wait hangs, that copies are whole vectors, and,
with copies as early and as late as they may come, that no slot is read or refilled too soon. What it cannot show: the GPU's own order of
memory accesses, and times.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import re
import subprocess
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch

from fusebench.registry import Kernel, Op, nvrtc

RUNTIME = Path(__file__).with_name("cuda_on_cpu.hpp")
SHARED_BYTES = 227 * 1024
L2_BYTES = 50 * 2**20
STATEMENTS = (
    (r"cvt\.f32\.f16 ", "{0} = emulated::from_half({1})"),
    (r"cvt\.rn\.bf16\.f32 ", "{0} = emulated::to_bfloat({1})"),
    (r"cvt\.rn\.f16\.f32 ", "{0} = emulated::to_half({1})"),
    (r"cvt\.rn\.bf16x2\.f32 ", "{0} = emulated::to_bfloat({1}) << 16 | emulated::to_bfloat({2})"),
    (r"cvt\.rn\.f16x2\.f32 ", "{0} = emulated::to_half({1}) << 16 | emulated::to_half({2})"),
    (r"ld\.global\.nc(\.L2::cache_hint)?\.v4\.u32 ", "emulated::load16(&({0}), {4})"),
    (r"createpolicy\.fractional\.L2::evict_first\.b64 ", "{0} = 0"),
    (r"bar\.sync ", "emulated::bar({0}, {1})"),
    (r"cp\.async\.bulk\.prefetch\.L2\.global ", "(void)0"),
    (r"mbarrier\.init\.shared::cta\.b64 ", "emulated::init_barrier({0})"),
    (r"fence\.mbarrier_init\.release\.cluster", "(void)0"),
    (r"mbarrier\.arrive\.expect_tx\.shared::cta\.b64 ", "emulated::arrive({0}, {1})"),
    (
        r"cp\.async\.bulk\.shared::cluster\.global\.mbarrier::complete_tx::bytes(\.L2::cache_hint)? ",
        "emulated::bulk_copy({0}, {1}, {2}, {3})",
    ),
    (r"\{\\n\.reg \.pred p;\\nmbarrier\.try_wait\.parity\.shared::cta\.b64 ", "{0} = emulated::try_wait({1}, {2})"),
)
"""What begins an assembly statement, and C++ of its operands."""


class EmulationError(Exception):
    """The kernel cannot be run, or a block of it hung or broke a rule; the message says which."""


def translated(source: nvrtc.KernelSource) -> str:
    """C++ for the host of a kernel's source, its headers included.

    Raises:
        EmulationError: an assembly statement that STATEMENTS does not know.
    """
    text = _inlined(source.file)
    text = re.sub(r"extern __shared__ (__align__\(\d+\)) char (\w+)\[\];", rf"static \1 char \2[{SHARED_BYTES}];", text)
    poison = "memset(shared_bytes, 0xff, sizeof shared_bytes);" if "char shared_bytes[" in text else ""
    macros = "".join(f"#define {name} {value}\n" for name, value in source.macros)
    entry = f"""
extern "C" const char* emulate(unsigned grid, unsigned block, int late, void** arguments) {{
    using namespace emulated;
    late_copies(late);
    given = arguments;
    body = [](void** values) {{ call_all(&{source.entry}, values); }};
    grid_size.x = grid;
    fault.clear();
    for (unsigned at = 0; at < grid && fault.empty(); ++at) {{
        block_index.x = at;
        {poison}
        run_block(block);
    }}
    return fault.c_str();
}}
"""
    helpers = """
namespace emulated {
inline void late_copies(int yes) { late = yes; }
template <class... A> void call_all(void (*kernel)(A...), void** values) { call(kernel, values, std::index_sequence_for<A...>{}); }
}
"""
    return f'#include "{RUNTIME.name}"\n#define __CUDA_ARCH__ 900\n{macros}{_without_assembly(text)}{helpers}{entry}'


def _inlined(file: Path) -> str:
    def included(found: re.Match[str]) -> str:
        return _inlined(file.parent / found.group(1))

    return re.sub(r'^#include "(.+)"$', included, file.read_text(), flags=re.MULTILINE)


def _without_assembly(text: str) -> str:
    made, at = [], 0
    for found in re.finditer(r"\basm\s*(?:volatile\s*)?\(", text):
        depth, end, quoted = 1, found.end(), False
        while depth:
            if text[end] == '"':
                quoted = not quoted
            elif not quoted:
                depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        statement = text[found.end() : end - 1]
        made += [text[at : found.start()], _as_cpp(statement)]
        at = end
    return "".join((*made, text[at:]))


def _as_cpp(statement: str) -> str:
    code = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', re.split(r'(?<!:):(?!:)(?=\s*(?:"=|:|"\w+"\())', statement)[0]))
    operands = _operands(statement)
    for begins, cpp in STATEMENTS:
        if re.match(begins, code):
            return cpp.format(*(f"({one})" for one in operands))
    raise EmulationError(f"assembly {code[:60]!r} is unknown: STATEMENTS of {__file__} says what each statement does")


def _operands(statement: str) -> list[str]:
    """The expressions of an assembly statement's operands, in order."""
    found = []
    for constraint in re.finditer(r'"[=+]?[a-z]"\(', statement):
        depth, end = 1, constraint.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(statement[end], 0)
            end += 1
        found.append(statement[constraint.end() : end - 1])
    return found


class Ran(NamedTuple):
    """A kernel's call on the CPU."""

    arguments: Mapping[str, Any]
    outputs: Mapping[str, torch.Tensor]
    reference: Mapping[str, torch.Tensor]
    """In float64."""
    launched: tuple[nvrtc.KernelSource, ...]
    """The kernels of CUDA C++."""


def run_case(
    op: Op,
    kernel: Kernel,
    fields: Mapping[str, Any],
    folder: Path,
    *,
    late: bool = False,
    planted: Mapping[str, str] | None = None,
    l2_bytes: int = L2_BYTES,
    fill: Callable[[Mapping[str, Any]], None] = lambda arguments: None,
) -> Ran:
    """Run `kernel` on a case as on a GPU of three multiprocessors; the arguments from `folder` on are those of `on_cpu`.

    Args:
        fields: of the op's Params; those that it lacks are left out.
        fill: writes values of its own into the arguments.
    """
    params = op.parse_params({field: value for field, value in fields.items() if field in op.Params.__struct_fields__})
    assert kernel.reason_unsupported(params) is None
    arguments = op.arguments(params, op.buffers(params, device=torch.device("cpu"), generator=torch.Generator().manual_seed(1)))
    fill(arguments)
    with on_cpu(folder, multiprocessors=3, late=late, planted=planted, l2_bytes=l2_bytes) as launched, _unwritten_is_nan():
        returned = kernel.function(**arguments)
    outputs = dict(zip(op.outputs, returned if isinstance(returned, tuple) else (returned,), strict=True))
    return Ran(arguments, outputs, op.reference(params, arguments), tuple(launched))


@contextmanager
def _unwritten_is_nan() -> Iterator[None]:
    """New tensors hold NaN, so that what a kernel does not write cannot be right by what the memory held before."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def largest(errors: Iterable[float]) -> float:
    """The largest of `errors`; infinite if one is NaN."""
    return max(math.inf if math.isnan(one) else one for one in errors)


def worst(error: Callable[..., float]) -> float:
    """The larger of `error(late=False)` and `error(late=True)`, with copies as early and as late as they may come; infinite where a block
    hangs or breaks a rule."""
    try:
        return max(error(late=late) for late in (False, True))
    except EmulationError:
        return math.inf


@contextmanager
def on_cpu(
    folder: Path, *, multiprocessors: int, late: bool, planted: Mapping[str, str] | None = None, l2_bytes: int = L2_BYTES
) -> Iterator[list[nvrtc.KernelSource]]:
    """Inside the block, kernels take tensors of the host and their launches run here; gives the sources launched so far.

    Args:
        folder: where compiled kernels are kept.
        multiprocessors: of the GPU that the launch code sees; few, so that small cases have many rows for each.
        late: whether bulk copies arrive as late as they may.
        planted: defects: texts of the source, each of which is there, and what takes their place.
        l2_bytes: of that GPU, which decide what leaves its L2 first.
    """
    launched: list[nvrtc.KernelSource] = []
    properties = types.SimpleNamespace(
        major=9,
        minor=0,
        multi_processor_count=multiprocessors,
        shared_memory_per_block_optin=SHARED_BYTES,
        shared_memory_per_multiprocessor=SHARED_BYTES + 1024,
        L2_cache_size=l2_bytes,
    )

    def launch(source: nvrtc.KernelSource, *, grid: int, block: int, arguments: Sequence[Any], shared_bytes: int = 0, **_: Any) -> None:
        launched.append(source)
        if shared_bytes > SHARED_BYTES:
            raise EmulationError(f"{shared_bytes} bytes of shared memory: a block has {SHARED_BYTES}")
        values = [_packed(one) for one in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(one) for one in values))
        fault = _compiled(source, folder, planted or {})(grid, block, int(late), pointers).decode()
        if fault:
            raise EmulationError(f"{source.entry}: {fault}")

    from fusebench.registry.arguments import Arguments

    with (
        mock.patch.object(nvrtc, "launch", launch),
        mock.patch.object(torch.cuda, "get_device_properties", return_value=properties),
        mock.patch.object(Arguments, "require_gpu"),
    ):
        yield launched


def _packed(value: Any) -> Any:
    if value is None:
        return ctypes.c_uint64(0)
    if isinstance(value, torch.Tensor):
        return ctypes.c_uint64(value.data_ptr())
    return ctypes.c_float(float(value)) if isinstance(value, np.float32) else ctypes.c_int64(value)


def _compile(*arguments: str) -> None:
    command = ["g++", "-std=c++17", "-O1", "-mf16c", "-w", "-fPIC", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EmulationError(f"{' '.join(command)}\n{done.stderr[:4000]}")


def _compiled(source: nvrtc.KernelSource, folder: Path, planted: Mapping[str, str]) -> Callable[..., bytes]:
    text = translated(source)
    for right, wrong in planted.items():
        if right not in text:
            raise ValueError(f"{right!r} is not in {source.entry}: no defect to plant")
        text = text.replace(right, wrong)
    library = folder / f"{hashlib.sha256((text + RUNTIME.read_text()).encode()).hexdigest()[:16]}.so"
    if not library.exists():
        header = folder / RUNTIME.name
        if not header.exists():  # compiled once: its standard headers take longer than a kernel
            header.write_bytes(RUNTIME.read_bytes())
            _compile("-x", "c++-header", str(header))
        written = library.with_suffix(".cpp")
        written.write_text(text)
        _compile("-shared", "-o", str(library), str(written))
    function: Any = ctypes.CDLL(str(library)).emulate
    function.restype = ctypes.c_char_p
    return function  # type: ignore[no-any-return]
