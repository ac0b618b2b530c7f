"""`fusebench doctor`: checks whether this machine is fit to measure, with a remedy for each "no"."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ..schema import ExitCode
from .shared.options import DeviceOption, JsonOption
from .shared.output import PIPED_WIDTH, print_json, print_table

if TYPE_CHECKING:
    from ..device.doctor_software import DoctorFinding
    from ..device.select import Device


def doctor(device: DeviceOption = "auto", json: JsonOption = False) -> None:
    """Check whether this machine is fit to measure: GPU, driver, idleness, clocks, counters, toolchain; each "no" with its remedy.

    Exit code 0: fit to measure on the chosen device (a machine without a GPU is fit for CPU runs).  3: not fit.
    """
    from ..device.doctor import examine, is_fit

    resolved, findings = examine(device)
    code = ExitCode.PASS if is_fit(findings) else ExitCode.DEVICE_UNFIT
    if json:
        print_json({"device": resolved, "fit": code is ExitCode.PASS, "exit_code": code, "findings": findings})
    else:
        _print_findings(resolved, findings, code)
    raise typer.Exit(code)


def _print_findings(device: Device | None, findings: list[DoctorFinding], code: ExitCode) -> None:
    rows = [(finding.status, finding.name, finding.found, finding.remedy) for finding in findings]
    print_table(("", "check", "found", "what to do"), rows, piped=PIPED_WIDTH)
    if code is ExitCode.PASS:
        typer.echo(f"Fit to measure on: {device}")
    else:
        blocking = dict.fromkeys(finding.name for finding in findings if finding.status == "no")
        typer.echo(f"Not fit to measure ({', '.join(blocking)}): see what to do above.")
