"""The ops and kernels of some roots as a process of their own declares them: this process executes none of their files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...errors import UsageError
from ...schema import Case, KernelId
from ...toml_errors import Refusal
from ..declared import CaseFacts, CaseSupport, DeclaredKernel, DeclaredOp, OpDeclaration
from ..lookup import Lookup, Problem, require_match
from .messages import AskFacts, AskKernels, AskOps, AskSupport, FoundKernels, FoundOps, LoaderSetup, Question

if TYPE_CHECKING:
    from .process import LoaderProcess


class Listing(msgspec.Struct, kw_only=True):
    """The answers of a loader process, to be kept."""

    ops: list[OpDeclaration]
    kernels: list[DeclaredKernel] | None = None
    """None if no kernel file was loaded."""
    facts: dict[str, dict[str, CaseFacts]] = {}
    """By op and by a case's parameters (see `parameters_key`)."""
    support: dict[str, dict[str, CaseSupport]] = {}
    """Likewise."""


def parameters_key(params: Mapping[str, Any]) -> str:
    """A case's parameters as one text, whatever their order."""
    return repr(sorted(params.items()))


class Declarations(Lookup[DeclaredOp, DeclaredKernel]):
    """The ops of `roots`, and their kernels once `load_kernels` was called.

    A file that ends the loader process, or never returns, becomes a problem; a new process loads the others.
    """

    def __init__(
        self,
        roots: Sequence[Path],
        *,
        problems: Iterable[Problem] = (),
        known: Listing | None = None,
    ) -> None:
        """
        Args:
            roots: as `all_roots` gives them.
            problems: of the roots themselves.
            known: answers that are still valid; the process is started for others alone.
        """
        self.roots = tuple(roots)
        self.excluded: dict[str, str] = {}
        """Files that ended a loader process, each with the reason: no other process may import them."""
        self.modules: list[str] = []
        """Source files of the modules that the loader process has imported with the kernels."""
        self.silence_s: float | None = None
        """Seconds after which the code of one file counts as hung, if fewer than usual."""
        self.learned = False
        """Whether the loader process was asked anything."""
        self._first_problems = list(problems)
        self._process: LoaderProcess | None = None
        self._with_kernels = False
        """Whether the process has loaded the kernels: not where these were known before, and it was asked about ops alone."""
        self._wanted: AskKernels | None = None
        self._narrow = False
        self._loaded = False
        self._ops: dict[str, DeclaredOp] | None = None
        self._kernels: dict[str, DeclaredKernel] = {}
        self._problems: list[Problem] = []
        self._facts: dict[str, dict[str, CaseFacts]] = {}
        self._support: dict[str, dict[str, CaseSupport]] = {}
        self._known = known
        if known is not None:
            self._take_ops(known.ops)
            self._facts, self._support = known.facts, known.support

    @property
    def ops(self) -> Mapping[str, DeclaredOp]:  # type: ignore[override]
        """The ops, by name."""
        self._ensure_ops()
        return self._ops or {}

    @property
    def kernels(self) -> Mapping[str, DeclaredKernel]:  # type: ignore[override]
        """The kernels by id; empty before `load_kernels`."""
        return self._kernels

    @property
    def problems(self) -> list[Problem]:  # type: ignore[override]
        """Files that could not be loaded, and declarations that were refused."""
        self._ensure_ops()
        return [*self._first_problems, *self._problems]

    @property
    def listing(self) -> Listing | None:
        """All answers so far; None if some kernels were left out, or if a file has a problem, which is to be reported again."""
        if self._narrow or self.problems or self.excluded:
            return None
        known = self._known.kernels if self._known is not None else None
        kernels = list(self._kernels.values()) if self._loaded else known
        declarations = [op.declaration for op in self.ops.values()]
        return Listing(ops=declarations, kernels=kernels, facts=self._facts, support=self._support)

    def require_known_match(self, pattern: str) -> None:
        """As `require_match`, if the kernels are known without a load; else nothing."""
        if self._known is not None and self._known.kernels is not None:
            require_match(pattern, [one.id for one in self._known.kernels])

    def load_kernels(self, *, only: frozenset[str] | None = None, kernel: KernelId | None = None, operators: bool = True) -> None:
        """Have the kernel files loaded; the arguments are those of `load_collection`."""

        self._wanted = AskKernels(only=only, kernel=kernel, operators=operators)
        self._narrow = only is not None or kernel is not None
        if self._known is not None and self._known.kernels is not None:
            found = [one for one in self._known.kernels if (only is None or one.id.op in only) and kernel in (None, one.id)]
            self._kernels, self._loaded = {str(one.id): one for one in found}, True
            return
        self._loaded = False
        self._ensure_kernels()

    def facts(self, op: str, params: Mapping[str, Any]) -> CaseFacts | Refusal:
        """What the op called `op` says of a case."""

        known, key = self._facts.setdefault(op, {}), parameters_key(params)
        if key not in known:
            answer: CaseFacts | Refusal = self._ask(AskFacts(op, dict(params)), CaseFacts, Refusal)
            if isinstance(answer, Refusal):
                return answer
            self._facts.setdefault(op, {})[key] = answer
        return self._facts[op][key]

    def support(self, case: Case) -> CaseSupport:
        """What the kernels of the case's op say of the case."""

        known, key = self._support.setdefault(case.op, {}), parameters_key(case.params)
        if key not in known:
            self._require_kernels()
            self._support.setdefault(case.op, {})[key] = self._ask(AskSupport(case.op, dict(case.params)), CaseSupport)
        return self._support[case.op][key]

    def learn(self, cases: Iterable[Case]) -> None:
        """Ask all there is to know of the cases whose parameters their op takes."""
        for case in cases:
            if case.op in self.ops and isinstance(self.facts(case.op, case.params), CaseFacts) and self._loaded:
                self.support(case)

    def close(self) -> None:
        """End the loader process; a later question starts another one."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def _ensure_ops(self) -> None:

        if self._ops is None:
            found = self._ask(AskOps(), FoundOps)
            self._take_ops(found.ops)
            self._problems = [one.problem for one in found.problems]

    def _ensure_kernels(self) -> None:

        if self._wanted is None or self._loaded:
            return
        self._loaded = True
        found = self._ask(self._wanted, FoundKernels)
        self._with_kernels = True
        self._take_ops(found.ops)
        self._kernels = {str(one.id): one for one in found.kernels}
        self._problems = [one.problem for one in found.problems]
        self.modules = found.modules

    def _take_ops(self, ops: Iterable[OpDeclaration]) -> None:
        self._ops = {one.name: DeclaredOp(one, self.facts) for one in ops}

    def _ask(self, question: Question, *kinds: type[Any]) -> Any:
        """The answer to `question`, from a new process as often as a file ends one.

        Raises:
            UsageError: the question cannot be answered.
        """
        from .process import FileEndedLoader

        self.learned = True
        while True:
            try:
                answer = self._running(isinstance(question, AskFacts | AskSupport)).ask(question)
            except FileEndedLoader as ended:
                self._process = None
                self._exclude(ended.file, ended.reason)
                continue
            except BaseException:
                self._process = None
                raise
            if isinstance(answer, kinds):
                return answer
            causes = [f"{file}: {reason}" for file, reason in self.excluded.items()]
            raise UsageError("; ".join(["kernel files could not be loaded", *causes, str(getattr(answer, "reason", answer))]))

    def _running(self, about_case: bool) -> LoaderProcess:
        """The process; for a question about a case it has loaded what the answer depends on."""
        from .process import SILENCE_S, LoaderProcess

        if self._process is None:
            import sys

            setup = LoaderSetup(roots=self.roots, excluded=dict(self.excluded), bytecode=not sys.dont_write_bytecode)
            silence_s = SILENCE_S if self.silence_s is None else min(SILENCE_S, self.silence_s)
            self._process, self._with_kernels = LoaderProcess(setup, silence_s=silence_s), False
            if about_case and self._loaded:
                self._reload()
        return self._process

    def _require_kernels(self) -> None:
        """Have the process load the kernels, if it has not: without them, none would decline anything."""
        if self._process is None or not self._with_kernels:
            self._reload()

    def _reload(self) -> None:
        """Have a new process load the kernels, as the one before had."""

        self._wanted = self._wanted or AskKernels()
        self._loaded = False
        self._ensure_kernels()

    def _exclude(self, file: str, reason: str) -> None:
        """Leave out a file that ended the process; all that was said before may be otherwise without it."""
        self.excluded[file] = reason
        self._known = None
        if not self._loaded:
            self._ops = None
        self._facts, self._support = {}, {}
        self._problems = [one for one in self._problems if str(one.file) != file]
