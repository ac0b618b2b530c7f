"""The files of kernels/_shared as the loaded kernels see them, and layouts to try them on."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fusebench.registry import Collection
from helpers.cuda_on_cpu import largest, run_case


@pytest.fixture(scope="session")
def shared(collection: Collection) -> Any:
    """`shared("modulation")`: a module of kernels/_shared."""
    root = type(collection.op("norm_scale_shift")).__module__.partition(".")[0]

    def load(name: str) -> ModuleType:
        return importlib.import_module(f"{root}._shared.{name}")

    return load


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where kernels compiled for the CPU are kept."""
    if shutil.which("g++") is None:
        pytest.skip("kernels are compiled for the CPU by g++")
    return tmp_path_factory.mktemp("cuda_on_cpu")


@pytest.fixture
def error_on_cpu(collection: Collection, shared: Any, one_rounding: Any, built: Path) -> Callable[..., float]:
    """`error_on_cpu(kernel, fields, entry, macros=, **of run_case)`: the largest error of any output in units of one rounding, infinite
    where one is NaN, of a call with one launch, whose kernel's name ends in `entry`, and which is compiled with `macros`.

    Of a second norm against that of the y that it comes with: a y between two values may be rounded to either.
    """
    second_norm = shared("norm_tanh.chain").reference_norm_scale

    def error(name: str, fields: Mapping[str, Any], entry: str = "", *, macros: Mapping[str, int] | None = None, **how: Any) -> float:
        ran = run_case(collection.op(name.partition("/")[0]), collection.kernel(name), fields, built, **how)
        assert [source.entry.endswith(entry) for source in ran.launched] == [True]
        assert dict(ran.launched[0].macros) | (macros or {}) == dict(ran.launched[0].macros)
        reference = dict(ran.reference)
        if "y2" in ran.outputs:
            second = {field: ran.arguments[field] for field in ("weight2", "bias2", "scale2", "eps", "norm")}
            reference["y2"] = second_norm(ran.outputs["y"], **second)
        return largest(one_rounding(value, reference[output]) for output, value in ran.outputs.items())

    return error


NORM_TANH = ("norm_tanh_mul_add", "norm_tanh_mul_add_norm_scale")
"""The ops that share their device code, and so their tests."""


@pytest.fixture(scope="session", params=NORM_TANH)
def tanh_bench(request: pytest.FixtureRequest, bench_of: Callable[[str], Any]) -> Any:
    """Either norm_tanh op with its kernels, on the device where Triton runs."""
    return bench_of(request.param)


@pytest.fixture(scope="session")
def tanh_case(tanh_bench: Any) -> Callable[..., Any]:
    """`tanh_case(**changes)`: Params of a small case; changes that only the op with a second norm knows are left out for the other."""
    known = tanh_bench.op.Params.__struct_fields__

    def parse(**changes: Any) -> Any:
        return tanh_bench.op.parse_params({"tokens": 3, "hidden": 96} | {name: value for name, value in changes.items() if name in known})

    return parse


@pytest.fixture(scope="session")
def gated_error(tanh_bench: Any, shared: Any, one_rounding: Any) -> Callable[..., float]:
    """`gated_error(params, buffers, outputs)`: the largest error in units of one rounding, y2's against the norm of the y it comes with.

    A y that lies between two values may be rounded to either, and y2 follows the one that is returned.
    """

    def error(params: Any, buffers: Any, outputs: Mapping[str, torch.Tensor]) -> float:
        arguments = tanh_bench.op.arguments(params, buffers)
        found = one_rounding(outputs["y"], tanh_bench.op.reference(params, arguments)["y"])
        if "y2" not in outputs:
            return found
        second = {name: arguments[name] for name in ("weight2", "bias2", "scale2", "eps", "norm")}
        return max(found, one_rounding(outputs["y2"], shared("norm_tanh.chain").reference_norm_scale(outputs["y"], **second)))

    return error
