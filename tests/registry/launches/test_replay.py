"""Replayed calls do what the kernel's own code would do, and what cannot be replayed is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusebench.registry.launches.replay import Replay, current_recorder, describe_call


class Doubling:
    """A kernel's function on a GPU that counts its calls: y = factor * x, by a recorded launch."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: torch.Tensor, other: torch.Tensor | None = None, *, factor: float = 2.0) -> torch.Tensor:
        self.calls += 1
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        self.launch(x, y, factor)
        return y

    def launch(self, x: torch.Tensor, y: torch.Tensor, factor: float) -> None:
        def run(source: int, target: int, size: int, by: float, *, stream: int) -> None:
            assert stream == torch.cuda.current_stream().cuda_stream
            LAUNCHED.append((source, target, size, by))

        run(x.data_ptr(), y.data_ptr(), x.numel(), factor, stream=torch.cuda.current_stream().cuda_stream)
        recorder = current_recorder()
        if recorder is not None:
            recorder.note(run, [x, y, x.numel(), factor])


def replaying(function: Callable[..., Any]) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    return Replay(function).call


def layouts(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    return describe_call(args, kwargs).layouts


LAUNCHED: list[tuple[int, int, int, float]] = []


@pytest.fixture
def doubling() -> Doubling:
    LAUNCHED.clear()
    return Doubling()


def on_gpu(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda")


@pytest.mark.gpu
def test_a_second_call_launches_the_same_on_the_new_addresses(doubling: Doubling) -> None:
    replay = replaying(doubling)
    first, second = on_gpu(8, 4), on_gpu(8, 4)
    replay((first,), {"factor": 3.0})
    y = replay((second,), {"factor": 3.0})
    assert doubling.calls == 1
    assert LAUNCHED[1] == (second.data_ptr(), y.data_ptr(), 32, 3.0)
    assert y.shape == second.shape
    assert y.dtype == second.dtype


@pytest.mark.gpu
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:4],
        lambda x: x.half(),
        lambda x: torch.randn(4, 8, device="cuda").t(),
        lambda x: x.flatten()[1:].view(31, 1),
    ],
    ids=["shape", "dtype", "strides", "address off 16 bytes"],
)
def test_another_layout_runs_the_kernels_own_code(doubling: Doubling, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    replay = replaying(doubling)
    x = on_gpu(8, 4)
    replay((x,), {})
    replay((change(x),), {})
    assert doubling.calls == 2


@pytest.mark.gpu
def test_another_option_runs_the_kernels_own_code(doubling: Doubling) -> None:
    replay = replaying(doubling)
    x = on_gpu(8)
    replay((x,), {"factor": 3.0})
    replay((x,), {"factor": 4.0})
    assert doubling.calls == 2
    assert [launch[3] for launch in LAUNCHED] == [3.0, 4.0]


@pytest.mark.gpu
def test_one_tensor_given_twice_is_never_written_down(doubling: Doubling) -> None:
    """The second of two equal addresses could not be told from the first, and the next call may give two tensors."""
    replay = replaying(doubling)
    x = on_gpu(8)
    replay((x, x), {})
    replay((x, on_gpu(8)), {})
    assert doubling.calls == 2


@pytest.mark.gpu
def test_a_workspace_is_never_written_down(doubling: Doubling) -> None:
    def with_workspace(x: torch.Tensor) -> torch.Tensor:
        doubling.calls += 1
        doubling.launch(x, torch.empty_like(x), 2.0)
        return torch.empty_like(x)

    replay = replaying(with_workspace)
    for _ in range(2):
        replay((on_gpu(8),), {})
    assert doubling.calls == 2


@pytest.mark.gpu
def test_a_replayed_call_runs_on_the_current_stream(doubling: Doubling) -> None:
    replay = replaying(doubling)
    x = on_gpu(8)
    replay((x,), {})
    with torch.cuda.stream(torch.cuda.Stream()):
        replay((x,), {})  # `run` itself compares the streams
    assert doubling.calls == 1


def test_nothing_is_replayed_on_a_cpu() -> None:
    calls = []

    def function(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return x + 1

    replay = replaying(function)
    x = torch.arange(4.0)
    assert all(torch.equal(replay((x,), {}), x + 1) for _ in range(3))
    assert len(calls) == 3


def test_an_argument_that_cannot_be_hashed_reaches_the_kernel() -> None:
    def function(x: torch.Tensor, *, eps: Any) -> None:
        raise ValueError(f"eps is {eps}")

    with pytest.raises(ValueError, match=r"eps is \[1\]"):
        replaying(function)((torch.ones(1),), {"eps": [1]})


def test_calls_share_a_key_where_only_values_differ() -> None:
    x = torch.zeros(4, 6)
    assert layouts((x,), {"eps": 1e-6}) == layouts((torch.ones(4, 6),), {"eps": 1e-6})
    for other in (torch.zeros(6, 4), torch.zeros(6, 4).t(), torch.zeros(4, 6, dtype=torch.float16), torch.zeros(4, 6, device="meta")):
        assert layouts((x,), {"eps": 1e-6}) != layouts((other,), {"eps": 1e-6})
    assert layouts((x,), {"eps": 1e-6}) != layouts((x,), {"eps": 1e-5})
    assert layouts((x, None), {}) != layouts((x,), {"weight": None})
