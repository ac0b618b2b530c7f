"""What one process does for `fusebench model`: builds the transformer and its variants, and counts, times, profiles and compares them."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..errors import FusebenchError, UsageError
from ..registry import Collection, load_collection
from ..schema import Case
from ..schema.models import Breakdown, Drift, LoopTime, SiteCalls, StepTime, WholeStack
from ..timing.timers.cupti import CuptiTimer
from .building import build, full_config, load
from .catalogue import load_model
from .denoise import Denoising
from .measuring import drift as drifting
from .measuring.breakdown import profile_step
from .measuring.gpu_times import ON_A_CPU, with_gpu_times
from .measuring.step_timing import TARGET
from .measuring.timed_variants import SmClock, step_of, timed_loops, timed_steps
from .measuring.whole_stack import whole_stack
from .memory import require_memory
from .op_calls import OpCall
from .variants import SPLIT, WARM_UPS, Variant, make_variant, parse_variant, told
from .verification import verify_calls

if TYPE_CHECKING:
    import torch


class ModelTask(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is asked to do."""

    model: str
    device: str
    """As torch names it: `cpu`, `cuda`."""
    uuid: str = ""
    """The GPU's, as NVML knows it; empty for a CPU."""
    variants: tuple[str, ...]
    kernels: tuple[str, ...]
    """Kernel roots."""
    tiny: bool = False
    layers: dict[str, int] = {}
    weights: str = ""
    """Folder of a person's own weights; random ones without it."""
    dtype: str = "bfloat16"
    steps: int = 4
    """Steps of the denoise loop that is timed and whose drift is followed."""
    budget_s: float = 120.0
    """Seconds of timing, of steps and of the denoise loop."""
    cases: tuple[Case, ...] = ()
    """Cases of the suite `models/NAME`, which the calls are held against; none for a tiny model."""
    target: float = TARGET
    confirm: bool = False
    """Only time, in a fresh process."""


class ModelWork(msgspec.Struct, frozen=True, kw_only=True):
    """What one process found."""

    config: dict[str, Any]
    parameters: int
    calls: tuple[SiteCalls, ...] = ()
    findings: tuple[str, ...] = ()
    times: tuple[StepTime, ...] = ()
    gpu_times_absent: str = ""
    loops: tuple[LoopTime, ...] = ()
    whole: WholeStack | None = None
    breakdowns: tuple[Breakdown, ...] = ()
    drift: Drift | None = None
    failures: tuple[str, ...] = ()
    """Parts that failed, with their errors."""
    notes: tuple[str, ...] = ()
    """Parts that are smaller than asked for, and why."""
    missing: tuple[str, ...] = ()
    """Parts that are still to come, in words; empty when all is done."""


LOOP_SHARE = 1 / 3
"""Share of the budget that the denoise loop may take; the steps get the rest."""
GPU_SHARE = 1 / 5
"""Share of the steps' part that goes to their GPU busy times; wall clock, which decides the verdicts, gets the rest."""
WHOLE_SHARE = 1 / 4
"""Seconds for rounds of smaller stacks, as a share of the budget and beside it, where a stack is cut."""
STEP_TIMES, GPU_TIMES, DRIFT, LOOP, WHOLE = "step times", "GPU busy times", "drift", "denoise loop", "the whole stack"


T = TypeVar("T")
Say = Callable[[str], None]


def _breakdown_of(variant: str) -> str:
    return f"breakdown of {variant}"


class Progress:
    """The work so far, which is kept after each part."""

    def __init__(self, so_far: ModelWork, keep: Callable[[ModelWork], None]) -> None:
        self.so_far, self._keep = so_far, keep
        keep(so_far)

    def done(self, part: str, **found: Any) -> None:
        """Keep what was found in `part`, which is missing no longer."""
        missing = tuple(one for one in self.so_far.missing if one != part)
        self.so_far = msgspec.structs.replace(self.so_far, missing=missing, **found)
        self._keep(self.so_far)

    def attempt(self, part: str, make: Callable[[], T]) -> T | None:
        """What `make` returns; its error is named in the record, and must not lose the parts that were measured before."""
        try:
            return make()
        except Exception as error:  # noqa: BLE001  a record with a failure does not pass
            text = f"{part}: {type(error).__name__}: {error}"
            self.so_far = msgspec.structs.replace(self.so_far, failures=(*self.so_far.failures, text))
            return None


def work(task: ModelTask, say: Say, keep: Callable[[ModelWork], None] = lambda so_far: None) -> ModelWork:
    """Do the task in this process; `say` receives progress in words, and `keep` the work so far after each part.

    What takes least time and says most comes first: whoever stops the process early has it.

    Raises:
        UsageError: what is asked for does not exist, or needs another diffusers.
    """
    import torch

    model = load_model(task.model)
    for name in task.variants:
        parse_variant(name)
    device, dtype = torch.device(task.device), getattr(torch, task.dtype)
    config = full_config(model, tiny=task.tiny, layers=task.layers)
    shapes = model.tiny_shapes if task.tiny else model.shapes
    if device.type == "cuda":
        require_memory(model, config, shapes, dtype, free=torch.cuda.mem_get_info(device)[0])
    say(f"building {model.title}")
    made = functools.partial(load, model, Path(task.weights)) if task.weights else functools.partial(build, model)
    transformer = made(config, device=device, dtype=dtype)
    whole = full_config(model, tiny=task.tiny)

    def build_whole() -> Any:
        if device.type == "cuda":
            torch.cuda.empty_cache()
            require_memory(model, whole, shapes, dtype, free=torch.cuda.mem_get_info(device)[0])
        return made(whole, device=device, dtype=dtype)

    parameters = sum(parameter.numel() for parameter in transformer.parameters())
    with torch.no_grad():
        denoising = Denoising(model, config, shapes, device=device, dtype=dtype)
        collection = load_collection([Path(root) for root in task.kernels])
        runnable, failed = _prepare(task, denoising, transformer, collection, say)
        recorded, of_peer = ((), False) if task.confirm else _recorded(runnable, denoising)
        findings = verify_calls(model, config, recorded, device=device.type, cases=task.cases, ops=collection.ops) if recorded else ()
        of_gpu = device.type == "cuda" and not task.confirm
        profiles = [_breakdown_of(variant.name) for variant in runnable]
        parts = (
            [STEP_TIMES]
            if task.confirm
            else [STEP_TIMES, *([GPU_TIMES] if of_gpu else []), DRIFT, *profiles, LOOP, *([WHOLE] if config != whole else [])]
        )
        so_far = ModelWork(
            config={key: value for key, value in config.items() if key in model.stacks},
            parameters=parameters,
            calls=site_calls(recorded),
            findings=tuple(f"{finding.where}: {finding.text}" for finding in findings if not (of_peer and finding.kind == "fallback")),
            times=tuple(failed),
            gpu_times_absent="" if of_gpu else ON_A_CPU,
            missing=tuple(parts),
        )
        progress = Progress(so_far, keep)
        loops_s = 0.0 if task.confirm or task.steps < 1 else LOOP_SHARE * task.budget_s
        gpu_s = GPU_SHARE * (task.budget_s - loops_s) if of_gpu else 0.0
        times = timed_steps(
            runnable,
            denoising,
            budget_s=task.budget_s - loops_s - gpu_s,
            target=task.target,
            clock=SmClock(task.uuid),
            say=say,
            keep=lambda times: keep(
                msgspec.structs.replace(progress.so_far, times=(*times, *failed), missing=(f"the rest of the {STEP_TIMES}", *parts[1:]))
            ),
        )
        progress.done(STEP_TIMES, times=(*times, *failed))
        if task.confirm:
            return progress.so_far
        if of_gpu:
            by_gpu = progress.attempt(
                GPU_TIMES,
                lambda: with_gpu_times(times, runnable, denoising, CuptiTimer(), budget_s=gpu_s, target=task.target, say=say),
            )
            progress.done(GPU_TIMES, **({} if by_gpu is None else {"times": (*by_gpu[0], *failed), "gpu_times_absent": by_gpu[1]}))
        progress.done(DRIFT, drift=progress.attempt(DRIFT, lambda: _drifted(task, runnable, denoising, say)))
        for variant in runnable:
            part = _breakdown_of(variant.name)
            found = progress.attempt(part, functools.partial(_broken_down, variant, denoising, say))
            progress.done(part, breakdowns=progress.so_far.breakdowns if found is None else (*progress.so_far.breakdowns, found))
        notes: list[str] = []
        loops = progress.attempt(
            LOOP, lambda: timed_loops(runnable, denoising, times, task.steps, budget_s=loops_s, say=say, note=notes.append)
        )
        progress.done(LOOP, loops=loops or (), notes=tuple(notes))
        if config != whole:
            full = {stack: whole[stack] for stack in model.stacks}
            check = functools.partial(whole_stack, transformer, runnable, denoising, collection, full=full, build_whole=build_whole)
            progress.done(
                WHOLE, whole=progress.attempt(WHOLE, lambda: check(rounds_s=WHOLE_SHARE * task.budget_s, whole_s=task.budget_s, say=say))
            )
    return progress.so_far


def _prepare(
    task: ModelTask, denoising: Denoising, transformer: Any, collection: Collection, say: Say
) -> tuple[list[Variant], list[StepTime]]:
    """The variants that run, warmed up, and a `StepTime` with the error of each that does not."""
    runnable, failed = [], []
    for name in task.variants:
        began = time.monotonic()
        try:
            variant = make_variant(name, denoising, transformer, collection)
            for _ in range(WARM_UPS):
                variant.predict(*denoising.middle())
            _finish(denoising.device)
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001  whatever a variant raises is its result: the others are measured
            failed.append(StepTime(variant=name, error=f"{type(error).__name__}: {told(error)}"))
            say(f"{name}: {failed[-1].error}")
            continue
        runnable.append(variant)
        say(f"{name}: ready after {time.monotonic() - began:.0f} s")
    return runnable, failed


def _recorded(variants: Sequence[Variant], denoising: Denoising) -> tuple[Sequence[OpCall], bool]:
    """The calls of ops in one step of the first eager substituted variant, and whether it is a peer's, which may lack ops.

    This project's own kernels come before a peer's.  No calls where no such variant runs.
    """
    for variant in sorted(variants, key=lambda one: bool(parse_variant(one.name).peer)):
        parts = parse_variant(variant.name)
        if variant.calls is not None and not parts.compiled and not parts.graph:
            with variant.calls.record() as recorded:
                variant.predict(*denoising.middle())
            return recorded, bool(parts.peer)
    return (), False


def site_calls(recorded: Sequence[OpCall]) -> tuple[SiteCalls, ...]:
    """Calls by site and parameters, in order of first call."""
    groups: dict[tuple[str, str, Any], list[OpCall]] = {}
    for call in recorded:
        groups.setdefault((call.site, call.op, call.params), []).append(call)
    found = []
    for (site, op, params), calls in groups.items():
        fallen = [call for call in calls if call.fallback]
        first = fallen[0] if fallen else calls[0]
        found.append(
            SiteCalls(
                site=site,
                op=op,
                kernel=first.kernel,
                calls=len(calls),
                params=msgspec.to_builtins(params),
                shape=first.shape,
                minimum_bytes=first.minimum_bytes,
                fallbacks=len(fallen),
                reason=first.fallback,
                place=first.place,
            )
        )
    return tuple(found)


def _broken_down(variant: Variant, denoising: Denoising, say: Say) -> Breakdown:
    parts = parse_variant(variant.name)
    say(f"{variant.name}: profiling a step")
    marked = not (parts.compiled or parts.graph)
    return profile_step(variant.name, step_of(variant, denoising), variant.transformer, device=denoising.device, marked=marked)


def _drifted(task: ModelTask, variants: Sequence[Variant], denoising: Denoising, say: Say) -> Drift | None:
    """Drift of the first variant with this project's fused ops."""
    by_name = {variant.name: variant for variant in variants}
    fused = next((variant for variant in variants if parse_variant(variant.name).fused), None)
    if SPLIT not in by_name or fused is None or task.steps < 1:
        return None
    split = by_name[SPLIT]
    say(f"drift of {fused.name} over {task.steps} steps")
    own = denoising.trajectory(split.predict, task.steps)
    of_fused = denoising.trajectory(fused.predict, task.steps)
    with contextlib.ExitStack() as stack:
        by = stack.enter_context(drifting.other_order(denoising.device))
        try:
            other = denoising.trajectory(split.predict, task.steps)
        except RuntimeError as error:
            raise FusebenchError(f"the equivalent model of the drift ({by}) does not run here: {error}") from error
    return drifting.judge(fused.name, drifting.distances(of_fused, own), drifting.distances(other, own), by)


def _finish(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
