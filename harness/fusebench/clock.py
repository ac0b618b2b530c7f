"""The clocks, bound before any kernel file is loaded, so that a kernel that replaces `time.perf_counter_ns` changes no measured time."""

from __future__ import annotations

from time import perf_counter_ns as now_ns
from time import thread_time_ns as worked_ns

__all__ = ["now_ns", "worked_ns"]
