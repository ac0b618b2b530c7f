"""The value types that every layer passes on: frozen, typed, serialisable.

This package owns the words of the project (case, kernel, contract, sample, result, run, verdict) and nothing else: no I/O,
no torch, no policy.  Times are nanoseconds in raw samples (`_ns`) and microseconds in results (`_us`); sizes are bytes.

A record on disk is a `Run` (see `store.run_folder`).  `SCHEMA_VERSION` is raised whenever a reader of the previous version could misread
the new one; a reader refuses a newer version and names both numbers.
"""

from __future__ import annotations

from .cases import Case, Suite
from .codes import EXIT_PRECEDENCE, ExitCode, worst_exit_code
from .findings import AAPair, Confirmation, ConfirmationOutcome, Finding
from .kernels import Bitwise, Close, Contract, KernelId, KernelInfo, Language, Role
from .records import (
    COMPARABLE_VERSIONS,
    SCHEMA_VERSION,
    CalibrationNote,
    CaseSummary,
    Environment,
    Floor,
    JoinedRun,
    Run,
    SamplingPlan,
    Spending,
    SuiteSummary,
    VisibleEffect,
    boards_of,
    limit_of,
)
from .results import (
    CHANGES,
    FAILED_STATUSES,
    LIMIT_NOISE,
    OUTSIDE_CONTRACT,
    Accuracy,
    Attachment,
    CacheState,
    Estimate,
    Measurement,
    OutputError,
    Result,
    Sample,
    Status,
    Verdict,
    VerdictKind,
)
from .scatter import ClassScatter, Reference, RunScatter
from .trials import GroundTruth, InjectedTrial, Injection, InjectionPlace

__all__ = [
    "CHANGES",
    "COMPARABLE_VERSIONS",
    "EXIT_PRECEDENCE",
    "FAILED_STATUSES",
    "LIMIT_NOISE",
    "OUTSIDE_CONTRACT",
    "SCHEMA_VERSION",
    "AAPair",
    "Accuracy",
    "Attachment",
    "Bitwise",
    "CacheState",
    "CalibrationNote",
    "Case",
    "CaseSummary",
    "ClassScatter",
    "Close",
    "Confirmation",
    "ConfirmationOutcome",
    "Contract",
    "Environment",
    "Estimate",
    "ExitCode",
    "Finding",
    "Floor",
    "GroundTruth",
    "InjectedTrial",
    "Injection",
    "InjectionPlace",
    "JoinedRun",
    "KernelId",
    "KernelInfo",
    "Language",
    "Measurement",
    "OutputError",
    "Reference",
    "Result",
    "Role",
    "Run",
    "RunScatter",
    "Sample",
    "SamplingPlan",
    "Spending",
    "Status",
    "Suite",
    "SuiteSummary",
    "Verdict",
    "VerdictKind",
    "VisibleEffect",
    "boards_of",
    "limit_of",
    "worst_exit_code",
]
