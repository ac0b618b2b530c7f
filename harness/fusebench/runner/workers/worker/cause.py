"""What an exception of a kernel means: the status of its result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ....errors import describe_exception
from ....schema import Status

COMPILE_ERROR_NAMES = frozenset(
    {"CompilationError", "NVRTCError", "InductorError", "BackendCompilerFailed", "PTXASError", "CompileTimeAssertionFailure"}
)
"""Exception classes by which Triton, NVRTC and torch.compile say that a kernel does not compile; by name, since each lives in a
library that need not be installed."""


NO_MEMORY = ("can't allocate memory", "bad_alloc", "Cannot allocate memory")
"""Parts of messages by which torch and the C++ library say that the host's memory does not suffice."""
DEVICE_FAULTS = (
    "uncorrectable ECC error", "GPU is lost", "device is lost", "no CUDA-capable device is detected", "busy or unavailable",
    "Unable to determine the device handle", "system not yet initialized",
)  # fmt: skip
"""Parts of messages by which CUDA and NVML say that the GPU itself does not work; no kernel can cause one of them."""


def describe_cause(error: BaseException, roots: Sequence[Path]) -> str:
    """`describe_exception`, also of exceptions that end a process."""
    if isinstance(error, SystemExit):
        return f"it asked its process to end with exit status {error.code if error.code is not None else 0}"
    return describe_exception(error if isinstance(error, Exception) else _as_exception(error), roots)


def _as_exception(error: BaseException) -> Exception:
    """A KeyboardInterrupt of the kernel's own, or the like, under its name and with its place."""
    named: type[Exception] = type(type(error).__name__, (Exception,), {})
    return named(*error.args).with_traceback(error.__traceback__)


def is_device_fault(error: BaseException) -> bool:
    """Whether the GPU itself is at fault."""
    return any(part in str(link) for link in _chain(error) for part in DEVICE_FAULTS)


def status_of(error: BaseException) -> Status:
    """The status of a kernel that raised `error`."""
    names = {kind.__name__ for link in _chain(error) for kind in type(link).__mro__}
    if names & {"OutOfMemoryError", "MemoryError"} or any(part in str(link) for link in _chain(error) for part in NO_MEMORY):
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
