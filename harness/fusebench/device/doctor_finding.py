"""One line of `fusebench doctor`, and the three ways to make one."""

from __future__ import annotations

from typing import Literal

import msgspec


class DoctorFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at, how it stands, what was found, and what to do about it (empty when nothing is to be done)."""

    name: str
    status: Literal["ok", "warn", "no"]
    found: str
    remedy: str = ""


def ok(name: str, found: str) -> DoctorFinding:
    """As it should be."""
    return DoctorFinding(name=name, status="ok", found=found)


def warn(name: str, found: str, remedy: str) -> DoctorFinding:
    """Measuring is possible; something is missing or worth knowing."""
    return DoctorFinding(name=name, status="warn", found=found, remedy=remedy)


def no(name: str, found: str, remedy: str) -> DoctorFinding:
    """The device cannot be measured on."""
    return DoctorFinding(name=name, status="no", found=found, remedy=remedy)
