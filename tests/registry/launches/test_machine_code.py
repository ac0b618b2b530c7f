"""Digests of machine code: equal instructions are equal whatever the folder and the comments, and what runs differently differs."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from fusebench import launchable
from fusebench.registry import load_collection
from fusebench.registry.kernel import Kernel
from fusebench.registry.launches.machine_code import Listener, combined, current_listener, described, digest, listening
from fusebench.registry.sources import call_digests
from fusebench.schema import Close, KernelId, Language, Role
from helpers.forked_workers import forking

TOY = Path(__file__).parents[2] / "toy_project" / "kernels"


def elf(**sections: bytes) -> bytes:
    """The smallest ELF file with these sections, whose names have `_` for `.`."""
    names, contents, table = b"\0", b"", []
    for name, content in {**{key.replace("_", "."): value for key, value in sections.items()}, ".shstrtab": b""}.items():
        table.append((len(names), 64 + len(contents), len(content)))
        names += name.encode() + b"\0"
        contents += content
    table[-1] = (table[-1][0], 64 + len(contents), len(names))
    body = contents + names
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01" + bytes(9), 2, 190, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, len(table), len(table) - 1
    )
    rows = b"".join(struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, offset, length, 0, 0, 1, 0) for name, offset, length in table)
    return header + body + rows


CODE = {"_text_kernel": b"instructions", "_nv_constant0_kernel": b"constants", "_debug_line": b"/one/kernel.py:3"}


def test_names_paths_and_line_numbers_do_not_count() -> None:
    renamed = {"_text_other": b"instructions", "_nv_constant0_other": b"constants", "_debug_line": b"/tmp/two/kernel.py:7"}
    assert digest(elf(**CODE)) == digest(elf(**renamed))


@pytest.mark.parametrize("changed", [{"_text_kernel": b"Instructions"}, {"_nv_constant0_kernel": b"Constants"}])
def test_instructions_and_constants_count(changed: dict[str, bytes]) -> None:
    assert digest(elf(**CODE)) != digest(elf(**(CODE | changed)))


def test_the_launch_geometry_counts() -> None:
    assert digest(elf(**CODE), (8, 1, 1)) != digest(elf(**CODE), (16, 1, 1))


def test_what_is_no_cubin_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a 64-bit little-endian ELF"):
        digest(b"BC\xc0\xde")


def test_cuda_compiled_in_two_folders_with_other_comments_is_equal_and_another_constant_is_not(tmp_path: Path) -> None:
    pytest.importorskip("cuda.core")
    from fusebench.registry.nvrtc import compile_cubin, kernel_source

    source = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }\n'

    def compiled(folder: str, text: str) -> bytes:
        file = tmp_path / folder / "twice.cu"
        file.parent.mkdir()
        file.write_text(text)
        return bytes(compile_cubin(kernel_source(file, "twice", {"N": 1}), "sm_90").code)

    first = compiled("one", source)
    assert digest(compiled("another_folder", f"// a comment\n\n{source}")) == digest(first)
    assert digest(compiled("third", source.replace("2.0f", "3.0f"))) != digest(first)


COMPILE = """
import importlib.util, json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from fusebench.registry.launches.machine_code import digest

found = []
for number, file in enumerate(sys.argv[1:]):
    spec = importlib.util.spec_from_file_location(f"planted_{number}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    source = ASTSource(module.twice, {"x": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {(2,): 128}, {(0,): [["tt.divisibility", 16]]})
    cubin = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["cubin"]
    found.append([digest(cubin), hash(cubin)])
print(json.dumps(found))
"""
TRITON = """import triton
import triton.language as tl


@triton.jit
def twice(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) * 2.0, mask=at < n)
"""


def test_triton_compiled_in_two_folders_on_other_lines_is_equal_and_another_constant_is_not(tmp_path: Path) -> None:
    """In a process of its own, since Triton interprets in this one.  The files themselves differ: they hold paths and line numbers."""
    texts = {"one": TRITON, "another_folder": f"# a comment\n\n{TRITON}", "third": TRITON.replace("* 2.0", "* 3.0")}
    files = []
    for folder, text in texts.items():
        file = tmp_path / folder / "twice.py"
        file.parent.mkdir()
        file.write_text(text)
        files.append(str(file))
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    done = subprocess.run([sys.executable, "-c", COMPILE, *files], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (first, second, third) = json.loads(done.stdout)
    assert first[0] == second[0] != third[0]
    assert first[1] != second[1]


def torch_kernel(function: Callable[..., object], role: Role = Role.FUSED, language: Language = Language.TORCH) -> Kernel:
    made = Kernel(function, KernelId("scale", "k", 1), role=role, language=language, contract=Close(), requires=(), note="")
    made.op = load_collection([TOY], entry_points=False).ops["scale"]
    return made


def digests(function: Callable[[torch.Tensor], object], x: torch.Tensor, **known: object) -> dict[str, str]:
    return call_digests(torch_kernel(function, **known), lambda: function(x))  # type: ignore[arg-type]


def test_equal_torch_operators_on_equal_layouts_are_equal_code_whatever_the_values() -> None:
    first = digests(lambda x: x.mul_(2.0), torch.ones(8))
    assert first
    assert first == digests(lambda x: x.mul_(2.0), torch.zeros(8))


@pytest.mark.parametrize(
    ("function", "size"), [(lambda x: x.mul_(3.0), 8), (lambda x: x.mul_(2.0), 9), (lambda x: x.mul_(2.0).add_(0.0), 8)]
)
def test_another_scalar_another_shape_or_one_operator_more_is_another_code(function: Callable[[torch.Tensor], object], size: int) -> None:
    assert digests(function, torch.ones(size)) != digests(lambda x: x.mul_(2.0), torch.ones(8))


@pytest.mark.parametrize("known", [{"role": Role.COMPILED}, {"role": Role.PEER}, {"language": Language.TRITON}])
def test_where_launches_may_go_unheard_nothing_is_known(known: dict[str, object]) -> None:
    assert digests(lambda x: x.mul_(2.0), torch.ones(8), **known) == {}


@pytest.mark.parametrize("digests", [{}, {"0:norm": "a1", "1:rope": ""}])
def test_the_code_of_a_whole_is_unknown_where_a_part_is(digests: dict[str, str]) -> None:
    assert combined(digests) is None


def test_the_code_of_a_whole_differs_with_any_part_and_their_order() -> None:
    whole = {"0:norm": "a1", "1:rope": "b2"}
    others = [{"0:norm": "a1"}, {"0:norm": "a1", "1:rope": "b3"}, {"0:rope": "b2", "1:norm": "a1"}]
    assert len({combined(one) for one in (whole, *others)}) == 4
    assert combined(whole) == combined(dict(whole))


def test_operators_of_another_torch_are_another_code() -> None:
    heard = []
    for library in ("torch 2.11.0", "torch 2.12.0", "torch 2.11.0"):
        listener = Listener()
        listener.note_operator("aten.mul_", [torch.ones(8), 2.0], library)
        heard.append(listener.digests)
    assert heard[0] == heard[2] != heard[1]


def test_neither_addresses_nor_the_number_of_the_gpu_count() -> None:
    storages = [torch.ones(8).untyped_storage() for _ in range(2)]
    assert described([storages[0]]) == described([storages[1]]) != described([torch.ones(9).untyped_storage()])
    assert described([torch.device("cuda", 0)]) == described([torch.device("cuda", 1)]) != described([torch.device("cpu")])


class Compiled:
    """What a launch of a Triton function returns."""

    name = "kernel"

    class metadata:  # noqa: N801
        num_warps, shared = 4, 0

    def __init__(self, cubin: bytes | None) -> None:
        self.asm = {} if cubin is None else {"cubin": cubin}


class JitFunction:
    arg_names = ("x", "n")

    def __init__(self, cubin: bytes | None) -> None:
        self.compiled = Compiled(cubin)

    def __getitem__(self, grid: object) -> Callable[..., Compiled]:
        return lambda *args, **kwargs: self.compiled


def launched(cubin: bytes | None, grid: tuple[int, ...] = (4,), n: int = 3) -> dict[str, str]:
    x = torch.ones(4)
    with listening() as listener:
        launchable(JitFunction(cubin))[grid](x, n)
    assert listener.launches == 1
    return listener.digests


def test_a_triton_launch_is_heard_with_its_code_its_grid_and_its_scalars() -> None:
    first = launched(elf(**CODE))
    assert launched(elf(**CODE)) == first
    assert launched(elf(**CODE), grid=(8,)) != first
    assert launched(elf(**CODE), n=4) != first
    assert launched(elf(**(CODE | {"_text_kernel": b"others"}))) != first


class Parameter:
    def __init__(self, name: str, *, is_constexpr: bool) -> None:
        self.name, self.is_constexpr = name, is_constexpr


class Specialised(JitFunction):
    """A Triton function that declares its parameters; `constants` are compiled in."""

    def __init__(self, cubin: bytes, constants: Sequence[str]) -> None:
        super().__init__(cubin)
        self.arg_names = ("x", "n", *constants)
        self.params = [Parameter(name, is_constexpr=name in constants) for name in self.arg_names]


def test_a_constant_that_changes_no_instruction_is_no_other_code() -> None:
    """A released kernel gained a constant and kept its machine code to the byte; 303 of 730 gating times of a nightly lost their digest."""

    def heard(constants: dict[str, int], cubin: bytes, n: int = 3, **options: int) -> dict[str, str]:
        with listening() as listener:
            launchable(Specialised(cubin, list(constants)))[(4,)](torch.ones(4), n=n, **constants, **options)
        return listener.digests

    cubin = elf(**CODE)
    first = heard({"BLOCK": 8}, cubin)
    assert heard({"BLOCK": 8, "UNIT": 1}, cubin, num_warps=4) == first
    assert heard({"BLOCK": 8}, cubin, n=4) != first, "a scalar that the launch passes"
    assert heard({"BLOCK": 8}, elf(**(CODE | {"_text_kernel": b"others"}))) != first


def test_without_a_cubin_the_digest_is_unknown() -> None:
    assert list(launched(None).values()) == [""]


def test_nobody_listens_outside_the_block() -> None:
    function = JitFunction(None)
    assert current_listener() is None
    assert launchable(function) is function


UNCOMPILED = """
import sys, torch
from fusebench.accuracy.poison import poisoned
from fusebench.registry.launches.machine_code import listening
from torch.utils._python_dispatch import TorchDispatchMode
assert "torch._dynamo" not in sys.modules
with listening() as listener, poisoned([], intercept=True):
    torch.empty(2, dtype=torch.int16).mul_(2)
assert len(listener.digests) >= 2, listener.digests
assert "torch._dynamo" not in sys.modules

class Planted(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))

with Planted():
    torch.empty(2)
assert "torch._dynamo" in sys.modules, "torch imports its compiler for a mode of its own"
with listening() as listener:
    torch.ones(2).mul_(2)
assert len(listener.digests) >= 2, listener.digests
"""


def test_listening_to_operators_does_not_import_torchs_compiler() -> None:
    """Which takes a second of every process that measures."""
    process = forking().Process(target=exec, args=(UNCOMPILED,))
    process.start()
    process.join()
    assert process.exitcode == 0
