"""The kernels of a stored run, for evidence: from the commit that its record names, else from stored static evidence."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ...config import Project
from ...counters.attachment import KernelFolders
from ...errors import FusebenchError
from ...evidence.attached import EvidenceTarget, Key, Provider
from ...evidence.fingerprint import toolchain
from ...evidence.static_attachment import EvidenceReply, EvidenceRequest, EvidenceSource
from ...schema import Attachment, Environment, Language, Run
from ...store.static_baselines import load_static
from ...verdict.baseline.kept_cases import kept_cases
from .base_checkout import BaseCommit, extract, why_absent

Compile = Callable[[Sequence[Path], str], EvidenceSource]
"""Makes the provider of one revision's compiled code: kernels folders, and a name for reports."""


class NoSourcesError(FusebenchError):
    """The sources of a run are no longer available."""


def baseline_source(environment: Environment, project: Project, compile_in: Compile) -> EvidenceSource:
    """The baseline's kernels: its commit's, else the stored evidence of this target and toolchain.

    Args:
        project: its repository is asked for the commit, in which its kernels' folders are looked for; its results hold stored evidence.

    Raises (when it is asked):
        NoSourcesError: there is neither; the message says why there is not.
    """

    def tell(wanted: EvidenceRequest) -> EvidenceReply:
        missing = _why_no_commit("the baseline", environment, project)
        if not missing:
            return _of_commit(environment.git_commit, project, compile_in, wanted)
        return _stored(missing, project, wanted)

    return tell


class OlderTimesNamed:
    """A provider of evidence against a baseline, which names the times that the baseline keeps from runs of other commits."""

    def __init__(self, baseline: Run, provider: Provider) -> None:
        commit = baseline.environment.git_commit
        self._older = {key: one.git_commit for key, one in kept_cases(baseline).items() if one.git_commit != commit}
        self._provider = provider
        self.kind, self.title = provider.kind, provider.title

    def explain(self, suspects: Sequence[EvidenceTarget]) -> dict[Key, Attachment]:
        """The provider's evidence, with a note where the commit that it shows as the baseline's is not that of the case's time."""
        return {key: self._named(key, attachment) for key, attachment in self._provider.explain(suspects).items()}

    def _named(self, key: Key, attachment: Attachment) -> Attachment:
        case, _ = key
        if case not in self._older or not attachment.columns:  # an attachment without columns shows nothing
            return attachment
        note = f"the baseline's time of this case is of an earlier run (commit {self._older[case][:12]}), whose code is not shown"
        return msgspec.structs.replace(attachment, notes=(*attachment.notes, note))


def run_source(environment: Environment, project: Project, compile_in: Compile) -> EvidenceSource:
    """A judged run's kernels: its commit's, else this checkout's, with a note of what that leaves open."""

    def tell(wanted: EvidenceRequest) -> EvidenceReply:
        missing = _why_no_commit("the run", environment, project)
        if not missing:
            return _of_commit(environment.git_commit, project, compile_in, wanted)
        told = compile_in(project.kernels, "this checkout")(wanted)
        return msgspec.structs.replace(told, notes=(*told.notes, f"this checkout stands for the run's kernels: {missing}"))

    return tell


@contextmanager
def baseline_kernels(environment: Environment, project: Project) -> Iterator[KernelFolders]:
    """The baseline's kernels as folders for the body, to be run: its commit's, since stored evidence cannot be.

    Raises:
        NoSourcesError: the commit is not to be had; the message says why.
    """
    missing = _why_no_commit("the baseline", environment, project)
    if missing:
        raise NoSourcesError(f"nothing to hold it against: {missing}")
    with _folders_of_commit(environment.git_commit, project) as folders:
        yield folders


def _why_no_commit(whose: str, environment: Environment, project: Project) -> str:
    if not environment.git_commit:
        return f"{whose} does not say which commit it was made of"
    if environment.git_dirty:
        return f"{whose} was made with uncommitted changes on {environment.git_commit[:12]}"
    return why_absent(project.root, environment.git_commit)


def _of_commit(commit: str, project: Project, compile_in: Compile, wanted: EvidenceRequest) -> EvidenceReply:
    with _folders_of_commit(commit, project) as folders:
        told = compile_in(folders.roots, folders.name)(wanted)
    return msgspec.structs.replace(told, notes=(*told.notes, *folders.notes))


@contextmanager
def _folders_of_commit(commit: str, project: Project) -> Iterator[KernelFolders]:
    with tempfile.TemporaryDirectory(prefix="fusebench-evidence-") as scratch:
        found = extract(project.root, BaseCommit(asked=commit, commit=commit, merge_base=False), project.kernels, Path(scratch))
        yield KernelFolders(found.roots, f"commit {commit[:12]}", found.notes)


def _stored(missing: str, project: Project, wanted: EvidenceRequest) -> EvidenceReply:
    tools, target = toolchain(), wanted.target.name
    found = load_static(project.results, target, tools)
    if found is None:
        raise NoSourcesError(
            f"nothing to hold it against: {missing}, and no static evidence of {target} is stored; "
            f"keep some with `fusebench static --suite NAME --arch {target} --promote`"
        )
    file, report = found
    differing = [
        f"{report.toolchain.compiler(language)} and not {tools.compiler(language)}"
        for language in (Language.TRITON, Language.CUDA)
        if report.toolchain.compiler(language) != tools.compiler(language)
    ]
    if differing:
        raise NoSourcesError(f"nothing to hold it against: {missing}, and {file.name} was made by {'; '.join(differing)}")
    return EvidenceReply(
        report=report, name=f"stored static evidence {file.stem}", notes=(f"the stored evidence stands for the baseline: {missing}",)
    )
