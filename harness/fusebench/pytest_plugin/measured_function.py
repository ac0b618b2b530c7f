"""A test's function from its first call to its figures: checked for what it overwrites, timed, compared with the marker's `over`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from ..device import EnvironmentMonitor, resolve_device
from ..errors import FusebenchError
from ..runner.workers.interference import measure_with_retry
from ..runner.workers.protocol import Measured
from ..runner.workers.remarks import label_refused, remark_on_timer, remarks_on_timing
from ..stats.paired import spans_by_replicate
from . import markers, measuring_of
from .figures import Figures
from .function import Call, InProcess, interpreted_launches, task_of


class Comparison:
    """A function, the functions that its `speed` markers compare it with, and the arguments of all."""

    def __init__(self, item: pytest.Item, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """
        Raises:
            pytest.fail.Exception: a `speed` marker names no function to compare with.
        """
        self._item, self._function, self._args, self._kwargs = item, function, args, kwargs
        self._functions = {_name(function): function}
        for speed in markers.speeds(item):
            if not callable(speed.over):
                name = f"speed(min_speedup={speed.min_speedup:g}, over={speed.over!r})"
                pytest.fail(f"{item.name}: {name}: expected a function of the same arguments, such as over=torch_version", pytrace=False)
            self._functions.setdefault(self._arm(speed.over), speed.over)
        self._call = Call(args, kwargs)
        self._values = self._call.snapshot()

    def first_call(self) -> tuple[Any, str]:
        """The result on the person's own arguments, and why the function cannot be timed; the latter empty if it can."""
        with interpreted_launches() as seen:
            result = self._function(*self._args, **self._kwargs)
        return result, "it ran in Triton's interpreter, and a Triton kernel needs a GPU to be timed" if seen else ""

    def measure(self, result: Any, minimum_bytes: int | None) -> Figures:
        """Time all functions in the same rounds.

        Raises:
            FusebenchError: the device is not fit to measure on, or the timer failed.
        """
        found = measuring_of(self._item.config)
        device = resolve_device("cpu" if self._call.device.type == "cpu" else str(self._call.device))
        found.hold(device)
        worker = InProcess(self._call, self._functions, device, self._values)
        worker.look_at(result, minimum_bytes)
        plan = found.plan(device.kind)
        task = task_of(self._item.name, plan)
        with EnvironmentMonitor(device) as monitor:
            reply = measure_with_retry(task, worker, monitor, device, on_progress=lambda progress: None, warn=found.reporter.note)
        if not isinstance(reply, Measured):
            raise FusebenchError(reply.reason)
        for text in [remark_on_timer(reply), *remarks_on_timing(task.case, [reply])]:
            if text:
                found.reporter.note(text)
        arm = next(iter(self._functions))
        over = list(self._functions)[1] if len(self._functions) > 1 else ""
        return Figures(
            arm=arm,
            spans=spans_by_replicate(reply.samples),
            trim=plan.trim,
            minimum_bytes=worker.minimum_bytes,
            floor=reply.floor,
            over=over,
            device=device.name,
            timer=reply.timer,
            cache=str(plan.cache),
            not_cold=label_refused(reply, plan.trim),
            facts={"launches": next(sample.kernels for sample in reply.samples if sample.arm == arm)},
        )

    def judge(self, figures: Figures) -> None:
        """Hold the figures against the test's markers."""
        next_step = "`--benchmark-save=NAME` on the code before, then `--benchmark-compare`, shows whether it became slower"
        markers.judge(self._item, figures, lambda over: self._arm(over) if over is not None else figures.over, next_step)

    def _arm(self, function: Callable[..., Any]) -> str:
        """The name of the function's arm: its own, with a number where the timed function has the same."""
        for name, known in self._functions.items():
            if known is function:
                return name
        name = _name(function)
        return name if name not in self._functions else f"{name} ({len(self._functions) + 1})"


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", "") or type(function).__name__)
