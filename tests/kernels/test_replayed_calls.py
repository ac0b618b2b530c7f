"""A replayed call of any kernel gives what the kernel's own code gives, on other values at other addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fusebench.config import find_project
from fusebench.registry import Collection, load_collection
from fusebench.registry.calling import call_form
from fusebench.registry.launches.replay import describe_call
from fusebench.schema import Role
from fusebench.suites import list_suites, load_suite

PROJECT = find_project(Path(__file__).parent)
FUSED = [str(kernel.id) for kernel in load_collection(PROJECT.kernels, entry_points=False).kernels.values() if kernel.role is Role.FUSED]
EDGES = [listing.name for listing in list_suites(PROJECT) if listing.name.startswith("edges")]
CASES_PER_KERNEL = 12


def test_every_fused_kernel_replays(collection: Collection) -> None:
    assert [kernel for kernel in FUSED if not collection.kernel(kernel).replays] == []


@pytest.mark.gpu
@pytest.mark.parametrize("kernel_id", FUSED)
def test_a_replayed_call_equals_the_kernels_own(kernel_id: str, collection: Collection) -> None:
    kernel = collection.kernel(kernel_id)
    op = collection.op(kernel.id.op)
    cases = [case for suite in EDGES for case in load_suite(suite, PROJECT, collection.ops).cases if case.op == op.name]
    replayed = 0
    for case in cases[:: max(1, len(cases) // CASES_PER_KERNEL)]:
        params = op.parse_params(case.params)
        if kernel.reason_unsupported(params) is not None:
            continue
        for seed in range(3):
            arguments, again = _arguments(op, params, seed), _arguments(op, params, seed)
            args, kwargs = call_form(op, again)
            expected, found = kernel.function(**arguments), kernel(*args, **kwargs)
            for name, one, other in zip(op.outputs, _outputs(op, arguments, expected), _outputs(op, again, found), strict=False):
                assert torch.equal(one.nan_to_num(), other.nan_to_num()), f"{case.key}, call {seed}: {name}"
        args, kwargs = call_form(op, _arguments(op, params, 9))
        for _ in range(3):  # by its own code or the plain path, then by the function that is written for the layout
            kernel(*args, **kwargs)
        layout = kernel.recorded(describe_call(args, kwargs))
        replayed += layout is not None
        for launch in layout.launches if layout is not None else ():
            assert launch.direct is not None or "num_ctas" in launch.plain_because, f"{case.key}: {launch.plain_because}"
    assert replayed, "no case was replayed at all"


def _arguments(op: Any, params: Any, seed: int) -> dict[str, Any]:
    device = torch.device("cuda")
    return dict(op.arguments(params, op.buffers(params, device=device, generator=torch.Generator(device).manual_seed(seed))))


def _outputs(op: Any, arguments: dict[str, Any], returned: Any) -> list[torch.Tensor]:
    if op.in_place:
        return [arguments[name] for name in op.outputs if arguments[name] is not None]
    return list(returned) if isinstance(returned, tuple) else [returned]
