"""Stand-ins for other libraries: their documented functions in torch, strict about what the documentation asks of arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from fusebench.accuracy import check_kernel
from fusebench.registry import Collection
from fusebench.schema import Accuracy
from helpers import documented

LIBRARIES = ("comfy_kitchen", "flash_attn", "flashinfer", "liger_kernel", "quack", "sglang", "vllm")


def forget_functions() -> None:
    """Let every loaded root's adapters look their functions up again."""
    for name, module in list(sys.modules.items()):
        if name.startswith("_fusebench_root_") and name.endswith("._shared.peers"):
            module.library_function.cache_clear()


class Stage:
    """Modules put in the place of libraries, and the calls that their functions got."""

    documented = documented

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def put(self, target: str, function: Callable[..., Any]) -> None:
        """Make `function` what `module:name` is, and keep its calls."""
        module, _, name = target.partition(":")
        parts = module.split(".")
        for count in range(1, len(parts) + 1):
            dotted = ".".join(parts[:count])
            if not isinstance(sys.modules.get(dotted), StandIn):
                self._monkeypatch.setitem(sys.modules, dotted, StandIn(dotted))

        def recorded(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((target, documented.bind(function, args, kwargs)))
            return function(*args, **kwargs)

        setattr(sys.modules[module], name, recorded)

    def called(self) -> list[str]:
        return [target for target, _ in self.calls]


class StandIn(ModuleType):
    """A module without a file."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """`stage.put("module:name", function)`; all libraries of the adapters are absent at first, installed or not."""
    for name in list(sys.modules):
        if name.partition(".")[0] in LIBRARIES:
            monkeypatch.delitem(sys.modules, name)
    forget_functions()
    yield Stage(monkeypatch)
    forget_functions()


@pytest.fixture
def libraries(stage: Stage) -> Stage:
    """Every library, with what the adapters call of it."""
    for target, function in documented.FUNCTIONS.items():
        stage.put(target, function)
    return stage


@pytest.fixture(scope="session")
def judge(collection: Collection) -> Callable[..., Accuracy]:
    """`judge(kernel id, params, device)`: the accuracy gate."""

    def check(kernel_id: str, raw: dict[str, Any], device: str = "cpu", rows: int | None = None) -> Accuracy:
        kernel = collection.kernel(kernel_id)
        assert kernel.op is not None
        params = kernel.op.parse_params(raw)
        assert kernel.reason_unsupported(params) is None
        split = collection.kernel(f"{kernel.op.name}/{kernel.op.split_reference}")
        return check_kernel(kernel, kernel.op, params, split=split, device=torch.device(device), seed=3, rows=rows)

    return check
