"""pytest and pytest-benchmark: `pytest --fusebench-suite NAME`, the fixture `gpu_benchmark`, and the markers `speed` and `sol`.

pytest loads this module wherever fusebench is installed, so it imports pytest alone; everything else is imported when an option or the
fixture asks for it.  This package turns samples into pytest-benchmark's figures; it times, checks and judges nothing by itself.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .measuring import Measuring

INSTALL = "pytest-benchmark is not loaded: install it with `pip install 'fusebench[pytest]'`, and leave out -p no:benchmark"
FIXTURE = "gpu_benchmark"
_SELECTION = ("suite", "op", "kernel", "case")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fusebench", "check and time kernels with fusebench")
    group.addoption("--fusebench-suite", metavar="NAME|PATH", action="append", help="Collect one test per kernel and case; repeatable.")
    group.addoption(
        "--fusebench-op",
        metavar="NAME",
        action="append",
        help="Cases of this op only; without a suite, the suite of that name; repeatable.",
    )
    group.addoption("--fusebench-kernel", metavar="GLOB", action="append", help="Kernels by name or op/name@version; repeatable.")
    group.addoption("--fusebench-case", metavar="GLOB", action="append", help="Cases by name or suite:name; repeatable.")
    group.addoption("--fusebench-device", metavar="auto|cpu|cuda|cuda:N", default="auto", help="Device of the suites' tests.")
    group.addoption("--fusebench-wait", metavar="SECONDS", type=float, default=60.0, help="Wait this long for a busy device (60).")
    group.addoption("--fusebench-replicates", metavar="N", type=int, help="Random placements of all buffers; at least 2.")
    group.addoption("--fusebench-rounds", metavar="N", type=int, help="Rounds per placement; at least 2.")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and the fixture in the form that this session can offer.

    Raises:
        pytest.UsageError: a suite is asked for where it cannot be measured.
    """
    config.addinivalue_line("markers", "speed(min_speedup, over=None): fail where the kernel is not this many times as fast (fusebench)")
    config.addinivalue_line("markers", "sol(min): fail where the kernel does not reach this share of the speed of light (fusebench)")
    benchmarks = benchmark_loaded(config)
    fixture = importlib.import_module(f"{__name__}.{'fixture' if benchmarks else 'missing'}")
    config.pluginmanager.register(fixture, "fusebench-fixture")
    for name in ("replicates", "rounds"):
        if (value := config.getoption(f"fusebench_{name}")) is not None and value < 2:
            raise pytest.UsageError(f"--fusebench-{name} is {value}; an interval needs at least 2")
    if not _selected(config):
        return
    if not benchmarks:
        raise pytest.UsageError(INSTALL)
    if hasattr(config, "workerinput") or config.getoption("dist", "no") != "no":
        raise pytest.UsageError(
            "--fusebench-suite with pytest-xdist: several processes would share the device, and no time would be valid; leave out -n, "
            "or pass -n0"
        )
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        # Nobody named a file: the suite's tests are all that is asked for, and not also the project's own tests.
        config.args = []


def benchmark_loaded(config: pytest.Config) -> bool:
    """Whether pytest-benchmark takes part: by its options, since a plugin has a different name for every way to load it."""
    return hasattr(config.option, "benchmark_disable")


def _selected(config: pytest.Config) -> bool:
    return any(config.getoption(f"fusebench_{name}") for name in _SELECTION)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the suites' tests before any conftest looks at the items, and give tests with the fixture their clock."""
    if _selected(config):
        from .collecting import collect

        items += collect(session)
    timed = [item for item in items if FIXTURE in getattr(item, "fixturenames", ())] if benchmark_loaded(config) else []
    if timed or _selected(config):
        require_histogram(config)
    for item in timed:
        from .playback import add_playback

        add_playback(item)


def require_histogram(config: pytest.Config) -> None:
    """Find what --benchmark-histogram draws with before anything is measured: pytest-benchmark looks for it after the last test.

    Raises:
        pytest.UsageError: a histogram is asked for, and what draws it is not installed.
    """
    missing = [name for name in ("pygal", "pygaljs") if importlib.util.find_spec(name) is None]
    if config.getoption("benchmark_histogram", None) and missing:
        raise pytest.UsageError(
            f"--benchmark-histogram needs {' and '.join(missing)}, not installed here: pip install 'pytest-benchmark[histogram]'"
        )


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Add what two sessions must share for their times to be compared; pytest-benchmark warns where it differs."""
    if _selected(config):
        from .measuring import machine_facts

        machine_info["fusebench"] = machine_facts(config)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_benchmark_scale_unit(config: pytest.Config, unit: str, benchmarks: list[dict[str, Any]]) -> tuple[str, float] | None:
    """Show times that fusebench measured in microseconds, unless --benchmark-time-unit asks for another unit."""
    ours = any("time_us" in one.get("extra_info", ()) for one in benchmarks)
    return ("u", 1e6) if ours and unit == "seconds" and config.getoption("benchmark_time_unit", None) is None else None


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if (found := known_measuring(config)) is not None:
        from .summary import show

        show(terminalreporter, found)


_KEY: pytest.StashKey[Any] = pytest.StashKey()


def known_measuring(config: pytest.Config) -> Measuring | None:
    """What this session has measured with; None if nothing asked for it."""
    return config.stash.get(_KEY, None)


def measuring_of(config: pytest.Config) -> Measuring:
    """The measuring of this session: made on first use, ended with the session."""
    found = known_measuring(config)
    if found is None:
        from .measuring import Measuring

        found = config.stash[_KEY] = Measuring(config)
        config.add_cleanup(found.close)
    return found
