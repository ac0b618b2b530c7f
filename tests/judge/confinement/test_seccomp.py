"""The filter's program, run by an interpreter: it decides the same on both architectures, whatever this machine is."""

from __future__ import annotations

import errno
import socket

import pytest

from fusebench.judge.confinement import seccomp
from fusebench.judge.confinement.seccomp import Instruction, program

PID = 4321
ALLOW, ERROR = 0x7FFF0000, 0x00050000
REFUSED, PRETENDED = ERROR | errno.EPERM, ERROR
MACHINES = {"x86_64": 0, "aarch64": 1}
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def decide(code: list[Instruction], architecture: int, number: int, *arguments: int) -> int:
    """What the kernel's interpreter of classic BPF would return."""
    data = {0: number, 4: architecture, **{16 + 8 * place: value & 0xFFFFFFFF for place, value in enumerate(arguments)}}
    place, value = 0, 0
    while True:
        operation, if_true, if_false, constant = code[place]
        place += 1
        match operation:
            case 0x20:
                value = data.get(constant, 0)
            case 0x54:
                value &= constant
            case 0x06:
                return constant
            case _:
                holds = {0x15: value == constant, 0x35: value >= constant, 0x45: value & constant != 0}[operation]
                place += if_true if holds else if_false


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("scoped", [True, False])
def test_the_filter_decides_as_its_tables_say(machine: str, scoped: bool) -> None:
    code, column, audit = program(machine, PID, signals_scoped=scoped), MACHINES[machine], AUDIT[machine]

    def answer(numbers: tuple[int | None, ...], *arguments: int) -> int:
        number = numbers[column]
        assert number is not None
        return decide(code, audit, number, *arguments)

    assert all(0 <= skip < 256 and place + 1 + skip < len(code) for place, one in enumerate(code) if one[0] & 7 == 5 for skip in one[1:3])
    assert len(code) < 4096  # the kernel's BPF_MAXINSNS
    for table, expected in ((seccomp._REFUSED, REFUSED), (seccomp._PRETENDED, PRETENDED)):
        for numbers in table.values():
            if numbers[column] is not None:
                assert answer(numbers) == expected
    for numbers in seccomp._OF_THIS_PROCESS.values():
        assert answer(numbers, 0) == ALLOW
        assert answer(numbers, PID) == REFUSED
    for numbers in seccomp._SIGNALS.values():
        assert answer(numbers, 0) == answer(numbers, PID) == ALLOW
        assert answer(numbers, PID + 1) == answer(numbers, -1) == (ALLOW if scoped else REFUSED)
    for numbers, commands in ((seccomp._FCNTL, seccomp._OWNER_COMMANDS), (seccomp._IOCTL, seccomp._OWNER_REQUESTS)):
        assert {answer(numbers, 0, command) for command in commands} == {REFUSED}
        assert answer(numbers, 0, 3) == answer(numbers, 0, 0x5401) == ALLOW
    assert answer(seccomp._SIGACTION, 17) == PRETENDED
    assert answer(seccomp._SIGACTION, 2) == ALLOW
    assert answer(seccomp._PRCTL, 36) == answer(seccomp._PRCTL, 1) == REFUSED
    assert answer(seccomp._PRCTL, 15) == ALLOW
    assert answer(seccomp._CLONE, 0x8000 | 17) == REFUSED
    assert answer(seccomp._SOCKET, socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) == ALLOW
    assert answer(seccomp._SOCKET, socket.AF_UNIX, socket.SOCK_SEQPACKET) == ALLOW
    for family, kind in ((socket.AF_UNIX, socket.SOCK_DGRAM), (socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET6, socket.SOCK_DGRAM)):
        assert answer(seccomp._SOCKET, family, kind) == REFUSED
    assert answer(seccomp._CLONE3) == ERROR | errno.ENOSYS
    assert answer(seccomp._CLONE, 0x01200011) == ALLOW  # fork of the C library
    assert answer(seccomp._CLONE, 0x10000011) == REFUSED  # into a user namespace
    assert answer(seccomp._PRCTL, 1) == REFUSED  # PR_SET_PDEATHSIG
    assert answer(seccomp._PRCTL, 15) == ALLOW  # PR_SET_NAME
    known = {numbers[column] for table in (seccomp._REFUSED, seccomp._PRETENDED, seccomp._OF_THIS_PROCESS) for numbers in table.values()}
    known |= {numbers[column] for numbers in seccomp._SIGNALS.values()}
    known |= {numbers[column] for numbers in (seccomp._SOCKET, seccomp._CLONE, seccomp._CLONE3, seccomp._PRCTL)}
    assert {number for number in range(500) if number not in known and decide(code, audit, number) != ALLOW} == set()


def test_other_architectures_of_the_same_kernel_are_refused() -> None:
    unknown = ERROR | errno.ENOSYS
    code = program("x86_64", PID, signals_scoped=True)
    assert decide(code, 0x40000003, 0) == unknown  # 32-bit programs, in which 0 is another call
    assert decide(code, AUDIT["x86_64"], 0x40000000) == unknown  # x32
    assert decide(program("aarch64", PID, signals_scoped=True), 0x40000028, 0) == unknown
    with pytest.raises(KeyError):
        program("riscv64", PID, signals_scoped=True)
