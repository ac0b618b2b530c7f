"""Program behind tests/kernels/test_traced_dispatch.py: traces `dispatch` for tensors of a GPU that this machine lacks.

It runs in a process of its own because Triton must not be interpreting. For each (op, Params as JSON, dynamic) on the command line it
prints the kernels that were chosen, and the operators of the graph that AOTAutograd hands to a compiler.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import triton
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._subclasses import FakeTensorMode

import fusebench
from fusebench.evidence.recording import _Driver
from fusebench.evidence.targets import target
from fusebench.registry import dispatch, load_collection
from fusebench.registry.signature import positional_names

COLLECTION = load_collection([Path(__file__).parents[2] / "kernels"], entry_points=False)


def traced(name: str, raw: dict[str, Any], dynamic: bool | None) -> dict[str, Any]:
    op = COLLECTION.op(name)
    params = op.parse_params(raw)
    buffers = op.buffers(params, device=torch.device("cpu"), generator=torch.Generator().manual_seed(0))
    keywords = dict(op.arguments(params, buffers))
    tensors = [keywords.pop(name) for name in positional_names(op.schema)]
    chosen = dispatch(name, collection=COLLECTION)
    graphs: list[list[str]] = []

    def compiler(graph_module: Any, inputs: Any) -> Any:
        nodes = (node for node in graph_module.graph.nodes if node.op == "call_function")
        graphs.append([" ".join(map(str, (node.target, *node.args[:1]))) for node in nodes])
        return make_boxed_func(graph_module.forward)

    def block(*given: Any) -> Any:
        # In-place ops overwrite what the graph computed: fake tensors have no memory that could be overwritten at run time.
        given = [None if each is None else each.clone() for each in given]
        returned = chosen(*given, **keywords)
        return [each + 1 for each in (returned if isinstance(returned, tuple) else (returned,))]

    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic, backend=fusebench.counting_backend(aot_autograd(fw_compiler=compiler)))
    with FakeTensorMode(), torch.no_grad(), fusebench.count_calls() as calls:
        on_gpu = [
            None if each is None else torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="cuda") for each in tensors
        ]
        compiled(*on_gpu)
    counted = {selection.kernel: count for selection, count in calls.items()}
    return {"kernels": counted, "fallbacks": [one.reason for one in chosen.fallbacks], "graphs": graphs}


if __name__ == "__main__":
    triton.runtime.driver.set_active(_Driver(target("sm_90")))
    print(json.dumps([traced(*wanted) for wanted in json.loads(sys.argv[1])]))
