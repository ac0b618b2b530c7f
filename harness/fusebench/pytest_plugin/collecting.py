"""One test per kernel and case of the suites that `--fusebench-suite` and its like select."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import pytest

from ..cli.shared.selection import Selection, resolve_selection
from ..device import Device, resolve_device
from ..device.toolchain import require_torch_for
from ..errors import FusebenchError
from ..registry import Problem
from ..runner.case_kernels import AnyKernel, CaseKernels, case_kernels, split_reference, timeable
from ..schema import FAILED_STATUSES, Case, Result, Status
from . import measuring_of
from .markers import judge, speeds
from .playback import add_playback, leave_out, playback

if TYPE_CHECKING:
    from .figures import Figures


class Chosen(msgspec.Struct, frozen=True):
    """What every test of the suites shares."""

    selection: Selection
    device: Device


class SuiteNode(pytest.Collector):
    """The parent of a suite's tests: its name is the first part of their ids."""

    tests: list[pytest.Item]

    def collect(self) -> list[pytest.Item]:
        """The suite's tests, which `collect` of this module makes."""
        return self.tests

    def report(self) -> list[pytest.Item]:
        """The same, after pytest was told of them as of any file's tests: it counts them."""
        report = self.ihook.pytest_make_collect_report(collector=self)
        self.ihook.pytest_collectreport(report=report)
        return list(report.result)


class KernelTest(pytest.Function):
    """The test of one kernel on one case."""

    case: Case
    kernel: AnyKernel
    chosen: Chosen

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.name

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Errors that a user can act on are shown as their message alone."""
        if isinstance(excinfo.value, FusebenchError):
            return f"{type(excinfo.value).__name__}: {excinfo.value}"
        return super().repr_failure(excinfo)


class ProblemTest(pytest.Item):
    """A kernel file that does not load: a test that fails."""

    problem: Problem

    def runtest(self) -> NoReturn:
        pytest.fail(f"not loaded: {self.problem}", pytrace=False)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.name


def collect(session: pytest.Session) -> list[pytest.Item]:
    """The tests, in the order of suites, cases and kernels.

    Raises:
        pytest.UsageError: a name that does not exist, a suite file or a device that is refused.
    """
    option = session.config.getoption

    def alternatives(name: str) -> str | None:
        given = option(f"fusebench_{name}")
        return ",".join(given) if given else None

    try:
        selection = resolve_selection(suite=option("fusebench_suite"), op=alternatives("op"), case=alternatives("case"), narrow=True)
        if (pattern := alternatives("kernel")) is not None:
            # Not narrowed by it: the split chain, the baseline and what a marker compares with take part too.
            selection.collection.require_match(pattern)
        device = resolve_device(option("fusebench_device"))
        require_torch_for(device)
        for op in selection.ops:
            split_reference(selection.collection, selection.collection.op(op))
    except FusebenchError as error:
        raise pytest.UsageError(str(error)) from error
    chosen = Chosen(selection, device)
    paths = {name: Path(path) for suite in selection.suites for name, path in {suite.name: suite.path, **suite.included}.items()}
    nodes: dict[str, SuiteNode] = {}
    for case in selection.cases:
        if case.suite not in nodes:
            path = paths.get(case.suite, session.path)
            nodes[case.suite] = SuiteNode.from_parent(session, name=case.suite, nodeid=case.suite, path=selection.project.root / path)
            nodes[case.suite].tests = []
        for kernel in selection.collection.kernels_of(case.op, pattern):
            nodes[case.suite].tests.append(_test(nodes[case.suite], case, kernel, chosen))
    for problem in selection.collection.problems:
        if problem.op in selection.ops and nodes:
            first = next(iter(nodes.values()))
            item = ProblemTest.from_parent(first, name=f"{problem.op}/{problem.file.name}", path=problem.file)
            item.problem = problem
            first.tests.append(item)
    return [item for node in nodes.values() for item in node.report()]


def _test(parent: SuiteNode, case: Case, kernel: AnyKernel, chosen: Chosen) -> KernelTest:
    item: KernelTest = KernelTest.from_parent(parent, name=f"{kernel.id}[{case.name}]", callobj=check_and_time)
    item.case, item.kernel, item.chosen = case, kernel, chosen
    add_playback(item, group=case.key)
    return item


def check_and_time(request: pytest.FixtureRequest, benchmark: Any) -> None:
    """The body of every `KernelTest`: accuracy, then time."""
    item = request.node
    assert isinstance(item, KernelTest)
    found, figures = _found(item, timed=benchmark.enabled)[str(item.kernel.id)]
    if figures is None:
        timed = benchmark.enabled
        leave_out(benchmark)
        _untimed(item, found, timed=timed)
        return
    playback(item).play(benchmark, figures.seconds, figures.timer)
    benchmark.extra_info.update(figures.extra_info())
    measuring_of(item.config).shown[item.name] = figures
    command = f"fusebench ncu --op {item.case.op} --suite {item.case.suite} --case {item.case.name} --kernel {item.kernel.id}"
    judge(item, figures, lambda over: _over(item, over), f"`{command}` reads the counters that say what limits it")


def _found(item: KernelTest, *, timed: bool) -> dict[str, tuple[Result, Figures | None]]:
    """The results on the case, of every kernel that has a test on it or that such a test is compared with."""
    selection, device = item.chosen.selection, item.chosen.device
    entry = case_kernels(selection.collection, item.case, device.kind)
    tests = [one for one in item.session.items if isinstance(one, KernelTest) and one.case.key == item.case.key]
    wanted = {one.kernel.id for one in tests} | ({entry.baseline.id} if entry.baseline is not None else set())
    for test in tests:
        wanted |= {_compared(test, speed.over).id for speed in speeds(test) if speed.over is not None}
    entry = msgspec.structs.replace(
        entry,
        runnable=tuple(kernel for kernel in entry.runnable if kernel.id in wanted),
        declined=tuple(result for result in entry.declined if result.kernel in {str(kernel) for kernel in wanted}),
    )
    # Where only its baseline could be timed, a case has no time that a test asks for.
    timed = timed and any(_timeable(entry, one.kernel, device) for one in tests)
    return measuring_of(item.config).case(selection.project, selection.collection, entry, device, selection.ops, timed=timed)


def _timeable(entry: CaseKernels, kernel: AnyKernel, device: Device) -> bool:
    return kernel in entry.runnable and timeable(kernel, device.kind) is None


def _compared(item: KernelTest, over: Any) -> AnyKernel:
    """The kernel that a marker's `over` names."""
    if not isinstance(over, str):
        pytest.fail(f"{item.name}: speed(over={over!r}): expected the name of a kernel, such as 'split_torch@1'", pytrace=False)
    found = item.chosen.selection.collection.kernels_of(item.case.op)
    matching = [kernel for kernel in found if over in (str(kernel.id), str(kernel.id).partition("/")[2])]
    if len(matching) != 1:
        known = ", ".join(str(kernel.id) for kernel in found)
        pytest.fail(f"{item.name}: speed(over={over!r}): expected one of {known}", pytrace=False)
    return matching[0]


def _over(item: KernelTest, over: Any) -> str:
    if over is None:
        entry = case_kernels(item.chosen.selection.collection, item.case, item.chosen.device.kind)
        return entry.baseline_id
    return str(_compared(item, over).id)


def _untimed(item: KernelTest, result: Result, *, timed: bool) -> None:
    """End the test of a kernel that has no time: as passed only where no time was asked for."""
    if result.status in FAILED_STATUSES:
        text = f"{result.kernel} is {result.status} on {item.case.key} ({result.shape}): {result.reason}"
        if not result.role_gates:
            pytest.xfail(f"{text}; another library maintains it")
        pytest.fail(
            f"{text}\n  next:     fusebench check --suite {item.case.suite} --case {item.case.name} --kernel {result.kernel}", pytrace=False
        )
    if result.status is Status.CHECKED and not timed:
        return
    if result.status is Status.NOT_MEASURED and _over(item, None) != "":
        pytest.fail(f"{result.kernel} on {item.case.key}: {result.reason}", pytrace=False)
    accuracy = "its accuracy is right, but it is not timed: " if result.accuracy is not None else ""
    pytest.skip(f"{accuracy}{result.reason}")
