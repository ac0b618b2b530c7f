"""What starts fast: commands that need no kernel import nothing heavy.

Import counts, not seconds, are what a test can hold; the time follows from them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
HEAVY = ("torch", "triton", "pandas", "matplotlib", "pyarrow", "scipy", "numpy", "jinja2", "pytest")

PROBE = """
import sys
sys.argv = ["fusebench", *sys.argv[1:]]
from fusebench.cli.main import main
try:
    main()
except SystemExit as exit:
    assert not exit.code, exit.code
print("imported:", *sorted({name.partition(".")[0] for name in sys.modules}))
"""


def imported(probe: str, *arguments: str) -> set[str]:
    """Top-level modules that a fresh process holds after running `probe` in the repository."""
    done = subprocess.run([sys.executable, "-c", probe, *arguments], cwd=REPOSITORY, check=True, capture_output=True, text=True, timeout=60)
    last = done.stdout.splitlines()[-1]
    assert last.startswith("imported:"), done.stdout
    return set(last.split()[1:])


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["list", "--help"], ["list", "suites"], ["list", "suites", "--json"], ["list", "cases"], ["list", "ops"]],
    ids=" ".join,
)
def test_commands_that_need_no_kernel_import_nothing_heavy(arguments: list[str]) -> None:
    modules = imported(PROBE, *arguments)
    assert "typer" in modules, "the probe ran the command"
    assert not modules & set(HEAVY)


def test_help_needs_no_rich() -> None:
    assert "rich" not in imported(PROBE, "--help")


def test_importing_the_package_imports_no_torch() -> None:
    modules = imported('import sys, fusebench; print("imported:", *sys.modules)')
    assert not modules & {*HEAVY, "typer", "rich"}


def test_the_probe_sees_what_a_command_imports() -> None:
    """The detector on a planted defect: listing kernels does import torch."""
    assert "torch" in imported(PROBE, "list", "kernels", "--device", "cpu")
