"""A GPU's context, made by its driver in a thread while torch is imported: each takes a part of a second, and neither needs the other."""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import suppress
from typing import Any


def begin_context(device: str, load: Any = ctypes.CDLL) -> threading.Thread:
    """Begin to make the primary context of `device`, which torch takes over; if that fails, torch makes it, or says why not.

    Args:
        device: torch's name of it, such as `cuda:1`.
        load: opens the driver's library.

    Returns:
        A thread, to be joined before torch uses the device.
    """
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as torch does before it starts CUDA
    index = int(device.partition(":")[2] or 0)

    def make() -> None:
        with suppress(OSError, AttributeError):
            driver = load("libcuda.so.1")
            number, context = ctypes.c_int(), ctypes.c_void_p()
            if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(number), index) == 0:
                driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number)

    thread = threading.Thread(target=make, name="context", daemon=True)
    thread.start()
    return thread
