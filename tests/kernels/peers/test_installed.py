"""Libraries that are installed here have the functions that the adapters call, with the signatures that the stand-ins document."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from fusebench.schema import Accuracy
from helpers import documented

from .conftest import forget_functions

QK = {"batch": 2, "tokens": 24, "heads": 4, "head_dim": 64}
NORM = {"batch": 2, "tokens": 24, "hidden": 256}


def changed(real: Callable[..., Any], known: Callable[..., Any]) -> str:
    """What the documented signature names and the real one lacks, or has in another order; empty if nothing."""
    names = list(inspect.signature(real).parameters)
    wanted = list(inspect.signature(known).parameters)
    lacking = [name for name in wanted if name not in names]
    return f"lacks {', '.join(lacking)}" if lacking else "" if [name for name in names if name in wanted] == wanted else "another order"


def test_a_changed_signature_is_noticed() -> None:
    def known(x: int, eps: float = 1e-6) -> None: ...
    def more(x: int, eps: float = 1e-6, out: int = 0) -> None: ...
    def renamed(x: int, epsilon: float = 1e-6) -> None: ...
    def turned(eps: float, x: int) -> None: ...

    assert [changed(one, known) for one in (known, more, renamed, turned)] == ["", "", "lacks eps", "another order"]


@pytest.mark.parametrize("target", documented.FUNCTIONS)
def test_an_installed_library_has_the_documented_signature(target: str) -> None:
    module, _, name = target.partition(":")
    library = module.partition(".")[0]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    try:
        real = getattr(importlib.import_module(module), name)
    except ImportError as error:
        pytest.skip(f"{library} does not load here: {error}")
    real = getattr(real, "_init_fn", real)  # the function that a torch custom op, as SGLang's are, was made of
    assert changed(inspect.unwrap(real), documented.FUNCTIONS[target]) == ""


COMFY = [
    ("qknorm_rope/peer_comfy@1", {**QK, "layout": "interleaved", "packed": True, "position_offset": 3}),
    ("qknorm_rope/peer_comfy@1", {**QK, "layout": "neox", "rope_dim": 32, "dtype": "float16"}),
    ("qknorm_rope/peer_comfy@1", {**QK, "kv_heads": 2, "layout": "neox"}),
    *(
        ("norm_scale_shift/peer_comfy@1", {**NORM, "norm": norm, "modulation": form, "frames": 4 if form == "frame" else 1})
        for norm in ("layer", "rms")
        for form in ("channel", "batch", "token", "frame")
    ),
]


@pytest.mark.parametrize(("kernel_id", "params"), COMFY)
def test_comfy_kitchen_passes_the_gate_on_a_cpu(judge: Callable[..., Accuracy], kernel_id: str, params: dict[str, Any]) -> None:
    """By its implementation in torch: the same function as on a GPU, with another kernel behind it."""
    pytest.importorskip("comfy_kitchen")
    forget_functions()
    accuracy = judge(kernel_id, params)
    assert accuracy.passed, accuracy.reason
