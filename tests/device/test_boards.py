"""Lists of boards, and the cores beside each."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from conftest import FakeMonitor, h200
from fusebench.device.boards import cores_beside, label_of, names_boards, resolve_boards
from fusebench.device.nvml import NvmlMonitor
from fusebench.device.readings import GpuUnavailableError
from fusebench.errors import UsageError

UUIDS = [f"GPU-{letter * 8}-0000-0000-0000-000000000000" for letter in "abcd"]


@pytest.fixture
def host(fake_gpu: Callable[..., FakeMonitor]) -> FakeMonitor:
    """A host of four H200s."""
    return fake_gpu(gpus=[h200(index, uuid) for index, uuid in enumerate(UUIDS)])


@pytest.mark.parametrize(
    ("spec", "labels"),
    [("all", ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]), ("cuda:0,2-3", ["cuda:0", "cuda:2", "cuda:3"]), ("cuda:3,1", ["cuda:3", "cuda:1"])],
)
def test_a_list_names_boards_in_its_order(host: FakeMonitor, spec: str, labels: list[str]) -> None:
    assert names_boards(spec)
    boards = resolve_boards(spec, host, environ={})
    assert [label_of(board) for board in boards] == labels
    assert [board.uuid for board in boards] == [UUIDS[int(label[-1])] for label in labels]


def test_all_are_the_visible_ones(host: FakeMonitor) -> None:
    boards = resolve_boards("all", host, environ={"CUDA_VISIBLE_DEVICES": "2,1"})
    assert [board.uuid for board in boards] == [UUIDS[2], UUIDS[1]]
    with pytest.raises(GpuUnavailableError, match="there is no such GPU"):
        resolve_boards("cuda:1,4", host, environ={})
    with pytest.raises(GpuUnavailableError, match="all hidden"):
        resolve_boards("all", host, environ={"CUDA_VISIBLE_DEVICES": ""})


def test_boards_of_two_models_or_of_one_gpu_are_refused(fake_gpu: Callable[..., FakeMonitor]) -> None:
    mixed = fake_gpu(gpus=[h200(0, UUIDS[0]), h200(1, UUIDS[1], name="NVIDIA A100")])
    with pytest.raises(UsageError, match=r"found GPUs of 2 models \(cuda:0 NVIDIA H200, cuda:1 NVIDIA A100\)"):
        resolve_boards("all", mixed, environ={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})


@pytest.mark.parametrize("spec", ["auto", "cpu", "cuda", "cuda:1"])
def test_one_device_is_no_list(spec: str) -> None:
    assert not names_boards(spec)


def test_each_board_has_cores_of_its_own_beside_it(host: FakeMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr("fusebench.device.boards._physical", lambda core: (core, core))
    boards = resolve_boards("all", host, environ={})
    nodes = {UUIDS[0]: range(8), UUIDS[1]: range(8), UUIDS[2]: range(8, 16), UUIDS[3]: range(8, 16)}
    found = cores_beside(boards, lambda uuid: frozenset(nodes[uuid]))
    assert found == [frozenset(range(first, first + 4)) for first in (0, 4, 8, 12)]
    unknown = cores_beside(boards, lambda uuid: frozenset(range(8)) if uuid == UUIDS[0] else None)
    assert unknown == [frozenset(range(first, first + 4)) for first in (0, 4, 8, 12)], "all share all, but no core twice"
    crowded = cores_beside(boards, lambda uuid: frozenset(range(14) if uuid != UUIDS[3] else range(14, 16)))
    assert crowded == unknown, "the node of one has too few cores"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(128)), raising=False)
    plenty = cores_beside(boards, lambda uuid: frozenset(range(96) if uuid != UUIDS[3] else range(96, 128)))
    assert plenty == [frozenset(range(first, first + 32)) for first in (0, 32, 64, 96)], "nodes differ, and have enough"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert cores_beside(boards, lambda uuid: None) == [None] * 4, "too few to pin"


def test_threads_of_one_core_stay_together(host: FakeMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr("fusebench.device.boards._physical", lambda core: (core % 8, core))
    first, *_ = cores_beside(resolve_boards("all", host, environ={}), lambda uuid: None)
    assert first == {0, 8, 1, 9}


def test_nvml_names_the_cores_of_a_gpus_node() -> None:
    class Lost(Exception): ...  # noqa: N818  its name does not matter

    def affinity(handle: str, words: int) -> list[int]:
        if handle == "lost":
            raise Lost
        return [0b1010, 1]

    names = {"nvmlInit": lambda: None, "nvmlDeviceGetHandleByUUID": lambda uuid: uuid, "nvmlDeviceGetCpuAffinity": affinity}
    monitor = NvmlMonitor(SimpleNamespace(NVMLError=Lost, **names))
    assert monitor.near_cores("GPU-x") == {1, 3, 64}
    assert monitor.near_cores("lost") is None
