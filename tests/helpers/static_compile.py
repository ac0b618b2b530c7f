"""Program behind the fixture `compile_launches`: compiles Triton launches for GPUs that this machine lacks, and prints what came out.

It runs in a process of its own because Triton must not be interpreting.  What is compiled is what the kernels really launch: they are
called on host memory with Triton's launching replaced by recording, and the recorded arguments are specialised by Triton's rules
(16-byte aligned pointers, integers divisible by 16, ones as constants; integers that a kernel exempts as they are).
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from fusebench.evidence.disassembly import code_of
from fusebench.evidence.static_worker import name_no_compiler
from fusebench.registry import Kernel, load_collection
from fusebench.registry.launches.driver_launch import Address, UnknownLaunchError, packed_triton
from helpers.cubin_dump import resources

KERNELS = Path(__file__).parents[2] / "kernels"
POINTERS = {
    torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64", torch.bool: "*i1",
}  # fmt: skip


class Launch(NamedTuple):
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def record(kernel: Kernel, params: dict[str, Any]) -> list[Launch]:
    """What `kernel` launches for a case."""
    op = kernel.op
    assert op is not None
    case = op.parse_params(params)
    arguments = op.arguments(case, op.buffers(case, device=torch.device("cpu"), generator=torch.Generator().manual_seed(0)))
    launches: list[Launch] = []

    def run(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches.append(Launch(function, args, kwargs))

    launching = JITFunction.run
    JITFunction.run = run
    # Kernels take host memory where Triton is interpreted, which they find out when they are called; the device functions above them
    # were made when it was not.
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        kernel.function(**arguments)
    finally:
        JITFunction.run = launching
        del os.environ["TRITON_INTERPRET"]
    return launches


def specialise(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ASTSource, dict[str, Any]]:
    signature: dict[str, str] = {}
    constants: dict[tuple[int], Any] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for index, name in enumerate(function.arg_names):
        value = args[index] if index < len(args) else kwargs[name]
        special = isinstance(value, int) and not function.params[index].do_not_specialize
        if index >= len(args) or (special and value == 1):
            signature[name], constants[(index,)] = "constexpr", value
            continue
        if isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
        if isinstance(value, torch.Tensor) or (special and value % 16 == 0):
            attributes[(index,)] = [["tt.divisibility", 16]]
    options = {name: value for name, value in kwargs.items() if name not in function.arg_names}
    return ASTSource(function, signature, constants, attributes), options


def as_inductor(source: ASTSource, options: dict[str, Any]) -> tuple[ASTSource, dict[str, Any]]:
    """The launch as Inductor compiles it inside torch.compile: floats in float64 (torch 2.13 at least), and warps and stages alone."""
    signature = {name: "fp64" if kind == "fp32" else kind for name, kind in source.signature.items()}
    return ASTSource(source.fn, signature, source.constants, source.attrs), {
        name: value for name, value in options.items() if name in ("num_warps", "num_stages")
    }


def refused(compiled: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Why a repeated launch would not go to the driver directly; empty if it would."""
    values = [*args, *(kwargs[name] for name in function.arg_names[len(args) :])]
    try:
        packed_triton(compiled, (1,), [Address(0) if isinstance(value, torch.Tensor) else value for value in values], 0)
    except UnknownLaunchError as error:
        return str(error)
    return ""


def reductions(ttgir: str) -> list[tuple[int, ...]]:
    """For each distinct sum over a row: the row's length, and how its elements lie on a thread, a warp's lanes and a block's warps.

    Two launches in which these agree add a row's elements in the same order.
    """
    along_rows = r"sizePerThread = \[\d+, (\d+)\], threadsPerWarp = \[\d+, (\d+)\], warpsPerCTA = \[\d+, (\d+)\]"
    layouts = {name: tuple(map(int, rest)) for name, *rest in re.findall(rf"^(#\w+) = #ttg\.blocked<{{{along_rows}", ttgir, re.MULTILINE)}
    found = re.findall(r"\}\) : \(tensor<\d+x(\d+)xf32, (#\w+)>\) -> tensor<", ttgir)
    return sorted({(int(length), *layouts[layout]) for length, layout in found})


def main() -> None:
    every = json.loads(sys.argv[1])
    name_no_compiler()
    # Operators are for what torch compiles, and take as long to make as everything else takes to load.
    ops = {wanted["kernel"].partition("/")[0] for wanted in every}
    collection = load_collection([KERNELS], entry_points=False, only=ops, operators=False)
    found = []
    for wanted in every:
        for function, args, kwargs in record(collection.kernel(wanted["kernel"]), wanted["params"]):
            source, options = specialise(function, args, kwargs | wanted.get("planted", {}))
            if wanted.get("inductor"):
                source, options = as_inductor(source, options)
            for capability in wanted.get("capabilities", [90]):
                compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
                ptx = compiled.asm["ptx"]
                found.append(
                    wanted
                    | {
                        "capability": capability,
                        "target": re.findall(r"\.target (sm_\d+)", ptx)[0],
                        "loads": re.findall(r"ld\.global\S*", ptx),
                        "stores": re.findall(r"st\.global\S*", ptx),
                        "reductions": reductions(compiled.asm["ttgir"]),
                        "fused": len(re.findall(r"\bfma\.rn\.f32", ptx)),
                        "doubles": re.findall(r"\b(?:add|sub|mul|fma|div|rcp|r?sqrt|max|min)\.[\w.]*f64\b", ptx),
                        "exponentials": len(re.findall(r"\bex2\.approx", ptx)),
                        "warps": kwargs["num_warps"],
                        "refused": refused(compiled, function, args, kwargs),
                        "code": code_of(compiled.asm["cubin"], compiled.metadata.name).sha256,
                    }
                    | resources(compiled.asm["cubin"])
                )
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
