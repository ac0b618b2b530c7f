"""Where a step's time goes: one profiled step, every activity of the device assigned to a stage.

An activity's stage follows from its name where that tells (matmul, attention, kernels that torch.compile fused) and else from the
operator that launched it and the module around that.  On a CPU the operators themselves are the activities.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...schema.models import Breakdown, KernelTime, StageTime

if TYPE_CHECKING:
    import torch

STAGES = ("matmul", "attention", "norm", "rope", "elementwise", "copies", "other")
"""`norm`: norms with what is fused to them (modulation, gates, residuals); `elementwise`: modulation, gates, residuals and activation
functions outside norms; `copies`: concatenations, layout changes and casts."""
LARGEST = 12
"""Kernels that a breakdown names."""

_MATMUL = re.compile(
    r"gemm|gemv|nvjet|cutlass|xmma|cublas|wgmma|splitk|convol|conv2d|conv3d|implicit_|addmm|\bmm\b|matmul|linear|bmm", re.I
)
_ATTENTION = re.compile(r"flash|fmha|sdpa|attention|softmax", re.I)
_COPIES = re.compile(r"memcpy|memset|copy|\bcat\b|catarray|concat|contiguous|clone|\bto\b|_to_copy|fill|arange|stack|zero_|empty", re.I)
_NORM = re.compile(r"norm|rsqrt|var_mean|welford|modulat|select01", re.I)
_ROPE = re.compile(r"rope|rotary|rotate|_qk_kernel", re.I)
_VIEWS = re.compile(
    r"aten::(expand|view|reshape|_?unsafe_view|t|transpose|permute|unflatten|flatten|chunk|split|slice|select|unsqueeze|as_strided|unbind)"
)
"""Operators of a CPU that move no data."""
_TEMPLATE = re.compile(r"triton_tem_")
"""Kernels of torch.compile that are templates of a matrix product or of attention, where autotuning chose them."""
_COMPUTES = re.compile(r"mul|add|sub|div|gelu|silu|sigmoid|tanh|exp|pow|neg|where|mean", re.I)
_ELEMENTWISE = re.compile(r"elementwise|mul|add|sub|div|gelu|silu|sigmoid|tanh|exp|pow|neg|where|clamp|reduce|mean|pointwise", re.I)
_MARK = "fusebench stage "
_IN_NORM, _IN_ATTENTION, _IN_ACTIVATION = f"{_MARK}norm", f"{_MARK}attention", f"{_MARK}activation"
_ACTIVATION = "LU"
"""How the names of activation functions' classes end: GELU, SiLU, SwiGLU."""


class Activity(NamedTuple):
    """One activity of the device, or one operator of a CPU without those that it called."""

    name: str
    start_us: float
    end_us: float
    parents: tuple[str, ...]
    """The operators and ranges around its launch, innermost first."""


def profile_step(variant: str, step: Callable[[], object], transformer: Any, *, device: torch.device, marked: bool) -> Breakdown:
    """Profile one step.

    Args:
        marked: whether modules are marked by ranges, which eager variants allow.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with marks(transformer) if marked else contextlib.nullcontext(), profile(activities=activities) as profiler:
        step()
        if cuda:
            torch.cuda.synchronize(device)
    return summarise(variant, device_activities(profiler) if cuda else host_activities(profiler), marked=marked)


def summarise(variant: str, activities: Sequence[Activity], *, marked: bool) -> Breakdown:
    """Times by stage, of which inside attention modules where these are `marked`, and the largest kernels."""
    if not activities:
        return Breakdown(variant=variant, span_us=0.0, busy_us=0.0, stages=())
    by_stage: defaultdict[str, float] = defaultdict(float)
    in_attention: defaultdict[str, float] = defaultdict(float)
    by_kernel: defaultdict[tuple[str, str], float] = defaultdict(float)
    launches, counts = Counter[str](), Counter[tuple[str, str]]()
    for one in activities:
        stage = stage_of(one.name, one.parents)
        elapsed = one.end_us - one.start_us
        by_stage[stage] += elapsed
        in_attention[stage] += elapsed if _IN_ATTENTION in one.parents else 0.0
        launches[stage] += 1
        by_kernel[one.name, stage] += elapsed
        counts[one.name, stage] += 1
    stages = tuple(
        StageTime(stage=stage, time_us=by_stage[stage], launches=launches[stage], attention_us=in_attention[stage] if marked else None)
        for stage in STAGES
        if launches[stage]
    )
    largest = tuple(
        KernelTime(name=name[:120], stage=stage, time_us=time, launches=counts[name, stage])
        for (name, stage), time in sorted(by_kernel.items(), key=lambda item: -item[1])[:LARGEST]
    )
    span = max(one.end_us for one in activities) - min(one.start_us for one in activities)
    return Breakdown(variant=variant, span_us=span, busy_us=busy_time(activities), stages=stages, kernels=largest)


def busy_time(activities: Sequence[Activity]) -> float:
    """Microseconds in which at least one activity runs."""
    busy, until = 0.0, float("-inf")
    for one in sorted(activities, key=lambda activity: activity.start_us):
        busy += max(0.0, one.end_us - max(one.start_us, until))
        until = max(until, one.end_us)
    return busy


def stage_of(name: str, parents: Sequence[str]) -> str:
    """The stage of one activity; see the module's text."""
    launcher = next((parent for parent in parents if not parent.startswith(_MARK)), "")
    if name.startswith(("Memcpy", "Memset")):
        return "copies"
    if _VIEWS.fullmatch(name):
        return "other"
    if name.startswith("triton_") and not _TEMPLATE.match(name):
        return _stage_of_generated(name)
    copies = bool(_COPIES.search(launcher or name))
    # Beside projections, norms and attention itself, an attention module only rotates and joins; FLUX.2's also applies SwiGLU.
    rotates = _IN_ATTENTION in parents and _IN_ACTIVATION not in parents and not (copies and "cat" in launcher)
    rules = (
        ("rope", _ROPE.search(name)),
        ("attention", _ATTENTION.search(name)),
        ("matmul", _MATMUL.search(name)),
        ("rope", _ROPE.search(launcher)),
        ("norm", _NORM.search(name) or _NORM.search(launcher) or _IN_NORM in parents),
        ("matmul", _MATMUL.search(launcher)),
        ("attention", _ATTENTION.search(launcher)),
        ("rope", rotates),
        ("copies", copies),
        ("elementwise", _ELEMENTWISE.search(name) or _ELEMENTWISE.search(launcher)),
    )
    return next((stage for stage, fits in rules if fits), "other")


def _stage_of_generated(name: str) -> str:
    """The stage of a kernel that torch.compile generated and named by the operators in it.

    Attention and matmul in its name are operators that it prepares inputs of; the product or attention itself is a library's kernel.
    """
    if _NORM.search(name):
        return "norm"
    return "copies" if not _COMPUTES.search(name) and _COPIES.search(name.replace("_", " ")) else "elementwise"


def device_activities(profiler: Any) -> list[Activity]:
    """Activities of the GPU, with the operators that launched them where they are known (none in a replayed graph)."""
    from torch._C._autograd import DeviceType

    events = list(profiler.events())
    launched: dict[tuple[str, float], list[tuple[str, ...]]] = {}
    for event in events:
        if event.device_type == DeviceType.CPU:
            for kernel in event.kernels:
                launched.setdefault((kernel.name, float(kernel.duration)), []).append(_ancestry(event))
    found = []
    for event in events:
        if event.device_type == DeviceType.CUDA and not event.name.startswith((_MARK, "ProfilerStep")) and not _is_range(event):
            same = launched.get((event.name, float(event.time_range.elapsed_us())))
            found.append(Activity(event.name, event.time_range.start, event.time_range.end, same.pop(0) if same else ()))
    return found


def host_activities(profiler: Any) -> list[Activity]:
    """Operators on a CPU, each with the time that it spent itself, ending where it ends."""
    found = []
    for event in profiler.events():
        if event.name.startswith("aten::") and event.self_cpu_time_total > 0:
            end = event.time_range.end
            found.append(Activity(event.name, end - event.self_cpu_time_total, end, _ancestry(event)))
    return found


def _ancestry(event: Any) -> tuple[str, ...]:
    names = []
    while event is not None:
        names.append(event.name)
        event = event.cpu_parent
    return tuple(names)


def _is_range(event: Any) -> bool:
    """Whether an event of the GPU's timeline is a range of the host, drawn there by the profiler."""
    return bool(getattr(event, "is_user_annotation", False))


@contextlib.contextmanager
def marks(transformer: Any) -> Iterator[None]:
    """Ranges around every norm, attention module and activation function of `transformer`, for the time of the block."""
    from torch.profiler import record_function

    handles, open_ranges = [], []

    def begin(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            opened = record_function(name)
            opened.__enter__()  # type: ignore[no-untyped-call]
            open_ranges.append(opened)

        return hook

    def end(*_: Any) -> None:
        open_ranges.pop().__exit__(None, None, None)

    for module in transformer.modules():
        kind = type(module).__name__
        by_name = _IN_NORM if "Norm" in kind else _IN_ACTIVATION if kind.endswith(_ACTIVATION) else ""
        mark = _IN_ATTENTION if hasattr(module, "processor") else by_name
        if mark:
            handles += [module.register_forward_pre_hook(begin(mark)), module.register_forward_hook(end)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
