"""A GPU that is kept busy for a while with nothing, so that the host can queue what is timed next."""

from __future__ import annotations

CYCLES_PER_US = 2000
"""Clock cycles per microsecond at just under 2 GHz."""


def spin(us: float) -> None:
    """Keep the current stream busy for about `us` microseconds; not at all for 0, nor where a graph is being captured, which the host
    launches whole (`timing.cuda_graph`)."""
    import torch

    if us > 0 and not torch.cuda.is_current_stream_capturing():
        launch_spin(us)


def launch_spin(us: float) -> None:
    """Launch a spin of about `us` microseconds on the current stream, also into a graph that is being captured."""
    import torch

    torch.cuda._sleep(int(us * CYCLES_PER_US))  # type: ignore[no-untyped-call]
