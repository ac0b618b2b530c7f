"""What an exception of a kernel means: the status of its result."""

from __future__ import annotations

from ...schema import Status

COMPILE_ERROR_NAMES = frozenset(
    {"CompilationError", "NVRTCError", "InductorError", "BackendCompilerFailed", "PTXASError", "CompileTimeAssertionFailure"}
)
"""Exception classes by which Triton, NVRTC and torch.compile say that a kernel does not compile; by name, since each lives in a
library that need not be installed."""


def status_of(error: Exception) -> Status:
    names = {kind.__name__ for link in _chain(error) for kind in type(link).__mro__}
    if names & {"OutOfMemoryError", "MemoryError"}:
        return Status.OUT_OF_MEMORY
    if "NotCapturableError" in names:  # the timer's limit, not the kernel's fault
        return Status.NOT_RUNNABLE
    return Status.COMPILE_ERROR if names & COMPILE_ERROR_NAMES else Status.CRASHED


def _chain(error: BaseException) -> list[BaseException]:
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or link.__context__
    return links
