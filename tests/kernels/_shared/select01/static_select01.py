"""Program of test_static_triton.py: compiles the select01 launches for sm_90 without a GPU, and prints what came out.

As ../static_compile.py, whose specialisation and resource counts it uses, in a process in which Triton does not interpret.
"""

from __future__ import annotations

import importlib
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

from fusebench.registry import Collection, load_collection

POINTERS = {torch.int32: "*i32", torch.int64: "*i64", torch.bool: "*i1"}


def static_compile() -> ModuleType:
    """The neighbouring program as a module."""
    spec = importlib.util.spec_from_file_location("static_compile", Path(__file__).parents[1] / "static_compile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.POINTERS |= POINTERS
    return module


def record(collection: Collection, recorder: Any, name: str, params: dict[str, Any]) -> Any:
    """The device function that a fused kernel launches for a case, whose launch the recorder takes."""
    kernel = collection.kernel(name)
    op = kernel.op
    assert op is not None
    shared = importlib.import_module(f"{type(op).__module__.partition('.')[0]}._shared.select01_triton")
    case = op.parse_params(params)
    arguments = op.arguments(case, op.buffers(case, device=torch.device("cpu"), generator=torch.Generator().manual_seed(0)))
    function, check = shared._select01, shared.check_device
    shared._select01, shared.check_device = recorder, lambda *_, **__: None  # type: ignore[attr-defined]
    try:
        kernel.function(**arguments)
    finally:
        shared._select01, shared.check_device = function, check  # type: ignore[attr-defined]
    return function


def main() -> None:
    static = static_compile()
    collection = load_collection([static.KERNELS], entry_points=False)
    found = []
    for wanted in json.loads(sys.argv[1]):
        recorder = static.Recorder()
        function = record(collection, recorder, wanted["kernel"], wanted["params"])
        ((args, kwargs),) = recorder.launches
        source, options = static.specialise(function, args, kwargs | wanted.get("planted", {}))
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        ptx = compiled.asm["ptx"]
        measured = {
            "loads": re.findall(r"ld\.global\S*", ptx),
            "stores": re.findall(r"st\.global\S*", ptx),
            "fused": len(re.findall(r"\bfma\.rn\.f32", ptx)),
            "warps": kwargs["num_warps"],
        }
        found.append(wanted | measured | static.resources(compiled.asm["cubin"]))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
