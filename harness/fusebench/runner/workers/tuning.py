"""Compilers in a worker: no choice that they tune goes to disk, and code of earlier cases is forgotten."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def keep_tuning_in_memory(*, inductor: bool) -> None:
    """Make Inductor and Triton in this process write no configuration that they tune to disk.

    They tune by timing.  Where other processes use the GPU at the same time, the choice may be a bad one, and every later process would
    take it from the disk.

    Args:
        inductor: whether anything is compiled by it; importing it takes seconds.

    Raises:
        AttributeError: the compiler has changed; then nothing may be compiled ahead.
    """
    import triton.runtime.autotuner as triton_tuner

    def tune(tuner: Any, key: Any, configs: Any, benchmark: Callable[[], None]) -> bool:
        benchmark()
        return False

    _replace(triton_tuner.Autotuner, "check_disk_cache", tune)
    if inductor:
        from torch._inductor.runtime import autotune_cache

        _replace(autotune_cache.AutotuneCache, "save", lambda *args, **kwargs: None)


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
