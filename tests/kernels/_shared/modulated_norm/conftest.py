"""norm_scale_shift and its residual form, each in turn: what holds for the one holds for the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fusebench.registry import Op

SMALL = {"tokens": 3, "hidden": 96}


@pytest.fixture(scope="session", params=["norm_scale_shift", "residual_gate_norm_scale_shift"])
def bench(request: pytest.FixtureRequest, bench_of: Callable[[str], Any]) -> Any:
    """The op's kernels on the device where Triton runs."""
    return bench_of(request.param)


@pytest.fixture(scope="session")
def op(bench: Any) -> Op:
    return bench.op


@pytest.fixture(scope="session")
def gated(op: Op) -> bool:
    """Whether the op has a residual and a gate."""
    return op.name == "residual_gate_norm_scale_shift"


@pytest.fixture(scope="session")
def parse(op: Op, gated: bool) -> Any:
    """`parse(form=None, **changes)`: Params of a small case with these changes, all modulations of `form` where that is given."""

    def parsed(form: str | None = None, **changes: Any) -> Any:
        forms = {} if form is None else {"modulation": form} | ({"gate": form} if gated else {})
        return op.parse_params(SMALL | forms | changes)

    return parsed


@pytest.fixture(scope="session")
def modulations(gated: bool) -> tuple[str, ...]:
    return ("gate", "scale", "shift") if gated else ("scale", "shift")


@pytest.fixture(scope="session")
def activations(gated: bool) -> tuple[str, ...]:
    return ("x", "residual") if gated else ("x",)
