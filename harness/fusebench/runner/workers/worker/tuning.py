"""Compilers in a worker: no choice that they tune goes to disk, and code of earlier cases is forgotten."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

_tunings = [0]


def keep_tuning_in_memory(*, inductor: bool) -> int:
    """Make Inductor and Triton in this process write no configuration that they tune to disk, and count what they tune.

    They tune by timing.  Where other processes use the GPU at the same time, the choice may be a bad one, and every later process would
    take it from the disk.

    Args:
        inductor: whether anything is compiled by it; importing it takes seconds.

    Returns:
        Number of kernels that were tuned so far.

    Raises:
        AttributeError: the compiler has changed; then nothing may be compiled ahead.
    """
    import triton.runtime.autotuner as triton_tuner

    def save(*args: Any, **kwargs: Any) -> None:
        """Nothing is saved.  Named as the method that it replaces: Inductor pickles it, by its name, with compiled code."""

    def tune(tuner: Any, key: Any, configs: Any, benchmark: Callable[[], None]) -> bool:
        _tunings[0] += 1
        benchmark()
        return False

    _replace(triton_tuner.Autotuner, "check_disk_cache", tune)
    if inductor:
        from torch._inductor.runtime import autotune_cache, triton_heuristics

        _replace(autotune_cache.AutotuneCache, "save", save)
        for name in ("autotune_to_one_config", "coordinate_descent_tuning"):
            _replace(triton_heuristics.CachingAutotuner, name, _counted(getattr(triton_heuristics.CachingAutotuner, name)))
    return _tunings[0]


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, counted as a tuning; itself if it is counted already."""
    if hasattr(function, "counts_tunings"):
        return function

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        _tunings[0] += 1
        return function(*args, **kwargs)

    counted.counts_tunings = True  # type: ignore[attr-defined]
    return counted


def _replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    getattr(owner, name)  # raises where it is absent
    setattr(owner, name, function)


def forget_compiled_code() -> None:
    """torch.compile keeps at most eight specialisations of a function; a suite has more cases than that.

    Only where there is some: on a GPU, forgetting imports the whole compiler, which takes a fresh process 4 s.
    """
    if _compiled_anything():
        import torch

        torch.compiler.reset()


def _compiled_anything() -> bool:
    """Whether torch.compile was given code in this process since it last forgot it all."""
    # The profiler imports the package too, so that it is there says nothing.  And torch's counters of frames leave out what is compiled
    # with `fullgraph`; the list is what `torch.compiler.reset` goes by.
    convert_frame = sys.modules.get("torch._dynamo.convert_frame")
    return convert_frame is not None and len(convert_frame.input_codes.seen) > 0
