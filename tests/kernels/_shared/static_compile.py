"""Program of the static tests of Triton: compiles the norms of kernels/_shared for sm_90 without a GPU, and prints what came out.

It runs in a process of its own because Triton must not be interpreting.  What is compiled is what the kernels really launch: they are
called with a recorder in the place of the device function, and the recorded arguments are specialised by Triton's rules (16-byte
aligned pointers, integers divisible by 16, ones as constants).
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fusebench.registry import Collection, load_collection

KERNELS = Path(__file__).parents[3] / "kernels"
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
DEVICE_CODE = {
    "norm_scale_shift": ("modulated_norm_triton", "_modulated_norm"),
    "residual_gate_norm_scale_shift": ("modulated_norm_triton", "_modulated_norm"),
    "norm_tanh_mul_add": ("norm_tanh_triton", "_norm_tanh"),
    "norm_tanh_mul_add_norm_scale": ("norm_tanh_triton", "_norm_tanh"),
}
"""By op: the module of kernels/_shared that launches it, and the device function's name there."""
POINTERS = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}


class Recorder:
    """Stands in for the device function; `launches` holds (positional, keyword) arguments."""

    def __init__(self) -> None:
        self.launches: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **kwargs: self.launches.append((args, kwargs))


def record(collection: Collection, kernel_id: str, params: dict[str, Any]) -> tuple[Any, list[tuple[tuple[Any, ...], dict[str, Any]]]]:
    """The device function that a kernel launches for a case, and its launches."""
    kernel = collection.kernel(kernel_id)
    op = kernel.op
    assert op is not None
    module, name = DEVICE_CODE[op.name]
    shared = importlib.import_module(f"{type(op).__module__.partition('.')[0]}._shared.{module}")
    file = sys.modules[kernel.__module__]
    case = op.parse_params(params)
    arguments = op.arguments(case, op.buffers(case, device=torch.device("cpu"), generator=torch.Generator().manual_seed(0)))
    function, recorder = getattr(shared, name), Recorder()
    setattr(shared, name, recorder)
    file.check_device = lambda *_, **__: None  # type: ignore[attr-defined]
    try:
        kernel.function(**arguments)
    finally:
        setattr(shared, name, function)
    return function, recorder.launches


def specialise(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ASTSource, dict[str, Any]]:
    signature: dict[str, str] = {}
    constants: dict[tuple[int], Any] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for index, name in enumerate(function.arg_names):
        value = args[index] if index < len(args) else kwargs[name]
        if index >= len(args) or (isinstance(value, int) and value == 1):
            signature[name], constants[(index,)] = "constexpr", value
            continue
        if isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
        if isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0):
            attributes[(index,)] = [["tt.divisibility", 16]]
    options = {name: value for name, value in kwargs.items() if name not in function.arg_names}
    return ASTSource(function, signature, constants, attributes), options


def resources(cubin: bytes) -> dict[str, int]:
    """REG, STACK, LOCAL, SHARED of the only function in `cubin`."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([CUOBJDUMP, "--dump-resource-usage", file.name], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL|SHARED):(\d+)", text)}


def main() -> None:
    collection = load_collection([KERNELS], entry_points=False)
    found = []
    for wanted in json.loads(sys.argv[1]):
        function, launches = record(collection, wanted["kernel"], wanted["params"])
        for args, kwargs in launches:
            source, options = specialise(function, args, kwargs | wanted.get("planted", {}))
            compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
            ptx = compiled.asm["ptx"]
            found.append(
                wanted
                | {
                    "target": re.findall(r"\.target (sm_\d+)", ptx)[0],
                    "loads": re.findall(r"ld\.global\S*", ptx),
                    "stores": re.findall(r"st\.global\S*", ptx),
                    "fused": len(re.findall(r"\bfma\.rn\.f32", ptx)),
                    "exponentials": len(re.findall(r"\bex2\.approx", ptx)),
                }
                | resources(compiled.asm["cubin"])
            )
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
