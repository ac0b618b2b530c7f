"""The rows of `fusebench list`: ops, kernels, suites, cases and who supports what, as plain dictionaries ready for JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...registry.collection import require_match
from ...registry.kernel import missing_modules, reason_not_runnable
from ...schema import KernelId
from .kernel_listing import listing_file, listing_of, parameters_key
from .selection import all_kernels, resolve_selection

if TYPE_CHECKING:
    from ...config import Project
    from ...registry import Collection, Op
    from ...schema import Case, KernelInfo
    from ...suites import SuiteListing
    from .selection import Selection

Row = dict[str, Any]


def op_row(op: Op) -> Row:
    """An op with the first line of its module's docstring, and its parameters with their defaults (`required` for none)."""
    documentation = (sys.modules[type(op).__module__].__doc__ or "").strip()
    return {
        "op": op.name,
        "description": documentation.split("\n")[0].removeprefix(f"{op.name}: "),
        "in_place": op.in_place,
        "schema": op.schema,
        "params": {
            field.encode_name: "required" if field.required else None if field.default is msgspec.NODEFAULT else field.default
            for field in msgspec.structs.fields(op.Params)
        },
    }


def suite_rows(listings: Iterable[SuiteListing]) -> list[Row]:
    """One row per suite file; `problem` says why a file is refused."""
    return [
        {
            "suite": one.name,
            "cases": one.cases,
            "description": one.description,
            "origin": one.origin,
            "path": one.path,
            "problem": one.problem,
        }
        for one in listings
    ]


def case_rows(selection: Selection) -> list[Row]:
    """One row per selected case, with the op's label for its shape."""
    rows = []
    for case in selection.cases:
        op = selection.collection.op(case.op)
        rows.append(
            {
                "suite": case.suite,
                "case": case.name,
                "op": case.op,
                "shape": op.shape(op.parse_params(case.params)),
                "weight": case.weight,
                "variant": case.variant,
                "source": case.source,
                "params": case.params,
            }
        )
    return rows


class ListedKernels:
    """The kernels of `ops`, as the kept listing has them; where it does not answer, the kernels are loaded and the answers are kept."""

    def __init__(self, project: Project, ops: Collection) -> None:
        self._project, self._ops = project, ops
        self._file = listing_file(ops.roots)
        self._loaded: Collection | None = None
        kept = self._file.read()
        self._new = kept is None
        self.listing = kept if kept is not None else listing_of(self._load())

    def require_match(self, pattern: str) -> None:
        """Raise UnknownNameError when no kernel matches the glob `pattern`, or one of several with commas between them."""
        broken = len(self._loaded.problems) if self._loaded is not None else 0
        require_match(pattern, [KernelId.parse(one.id) for one in self.listing.kernels], broken=broken)

    def missing_modules(self, kernel: KernelInfo) -> list[str]:
        """Modules that `kernel` requires and that are not installed."""
        if kernel.id not in self.listing.not_installed:
            self.listing.not_installed[kernel.id] = missing_modules(kernel)
            self._new = True
        return self.listing.not_installed[kernel.id]

    def reason_unsupported(self, case: Case, kernel: KernelInfo) -> str:
        """Why `kernel` declines `case`; empty if it takes it."""
        if self.listing.reason_unsupported(case, kernel.id) is None:
            self._ask(self._load(), case)
        return self.listing.reason_unsupported(case, kernel.id) or ""

    def keep(self) -> None:
        """Keep the answers that are new, unless a file could not be loaded; after a load those on the cases of every suite."""
        if not self._new or (self._loaded or self._ops).problems:
            return
        if self._loaded is not None:
            for case in resolve_selection(kernels=self._ops.roots, load_kernels=False, all_suites=True).cases:
                self._ask(self._loaded, case)
        self._file.keep(self.listing)

    def _ask(self, loaded: Collection, case: Case) -> None:
        known, key = self.listing.support.setdefault(case.op, {}), parameters_key(case.params)
        if key not in known:
            params = loaded.op(case.op).parse_params(case.params)
            reasons = {str(one.id): one.reason_unsupported(params) for one in loaded.kernels_of(case.op)}
            known[key] = {kernel: reason for kernel, reason in reasons.items() if reason is not None}
            self._new = True

    def _load(self) -> Collection:
        if self._loaded is None:
            self._loaded = all_kernels(self._project, self._ops)
        return self._loaded


def kernel_rows(project: Project, kernels: Iterable[KernelInfo], device: str, listed: ListedKernels) -> list[Row]:
    """One row per kernel; `reason` says why it cannot run on `device` (`cpu` or `cuda`), `not_installed` which modules it lacks."""
    rows = []
    for kernel in kernels:
        file = Path(kernel.file)
        shown = file.relative_to(project.root).as_posix() if file.is_relative_to(project.root) else str(file)
        absent = listed.missing_modules(kernel)
        reason = reason_not_runnable(kernel, device, absent=absent) or ""
        rows.append(msgspec.to_builtins(kernel) | {"file": shown, "runnable": not reason, "reason": reason, "not_installed": absent})
    return rows


def support_rows(selection: Selection, kernel: KernelInfo, listed: ListedKernels) -> list[Row]:
    """One row per selected case of the kernel's op; `reason` says why the kernel declines it."""
    rows = []
    for case in selection.cases:
        if case.op == kernel.op:
            reason = listed.reason_unsupported(case, kernel)
            rows.append({"case": case.key, "supported": not reason, "reason": reason})
    return rows
