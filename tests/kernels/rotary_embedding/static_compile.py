"""Program of test_static_triton.py: compiles the Triton launches for architectures that this machine lacks, and prints what came out.

It runs in a process of its own because Triton must not be interpreting.  How a launch is recorded and specialised is qknorm_rope's.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from fusebench.registry import Kernel, Op, load_collection

KERNELS = Path(__file__).parents[3] / "kernels"


def _load_tools() -> ModuleType:
    path = Path(__file__).parents[1] / "qknorm_rope" / "static_compile.py"
    spec = importlib.util.spec_from_file_location("qknorm_rope_static_compile", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record(tools: ModuleType, kernel: Kernel, op: Op, params: dict[str, Any]) -> tuple[Any, list[Any]]:
    """The device function that `kernel` launches for a case, and its launches."""
    module = sys.modules[f"{type(op).__module__.rpartition('.')[0]}._triton"]
    case = op.parse_params(params)
    arguments = op.arguments(case, op.buffers(case, device=torch.device("cpu"), generator=torch.Generator().manual_seed(0)))
    function, check_device, recorder = module._rotary, module.check_device, tools.Recorder()
    module._rotary, module.check_device = recorder, lambda *_, **__: None
    try:
        kernel(**arguments)
    finally:
        module._rotary, module.check_device = function, check_device
    return function, recorder.launches


def main() -> None:
    tools = _load_tools()
    collection = load_collection([KERNELS], entry_points=False)
    op = collection.op("rotary_embedding")
    found = []
    for wanted in json.loads(sys.argv[1]):
        function, launches = record(tools, collection.kernel(f"rotary_embedding/{wanted['kernel']}"), op, wanted["params"])
        for args, kwargs in launches:
            source, options = tools.specialise(function, args, kwargs | wanted.get("planted", {}))
            for capability in wanted["capabilities"]:
                compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
                ptx = compiled.asm["ptx"]
                found.append(
                    wanted
                    | {
                        "capability": capability,
                        "target": re.findall(r"\.target (sm_\d+)", ptx)[0],
                        "loads": re.findall(r"ld\.global\S*", ptx),
                        "stores": re.findall(r"st\.global\S*", ptx),
                        "fused": len(re.findall(r"\bfma\.rn\.f32", ptx)),
                    }
                    | tools.resources(compiled.asm["cubin"])
                )
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
