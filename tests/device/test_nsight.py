"""The probe for Nsight Compute and the permission to read counters: each way in which something is missing, with its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusebench.device.doctor_software import counter_findings
from fusebench.device.nsight import (
    NsightProbe,
    counters_restricted,
    denies_permission,
    find_ncu,
    in_container,
    is_administrator,
    ncu_version,
    permission_problem,
    permission_remedy,
    probe_nsight,
    tool_problem,
)

NOBODY = "Name:\tpython\nCapEff:\t0000000000000000\n"
ROOT_IN_A_CONTAINER = "Name:\tpython\nCapEff:\t00000000a80425fb\n"
ROOT = "Name:\tpython\nCapEff:\t000001ffffffffff\n"
PERFMON = "Name:\tpython\nCapEff:\t0000004000000000\n"


def tool(file: Path, version: str = "2025.3.1.0") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\necho 'NVIDIA (R) Nsight Compute Command Line Profiler'\necho 'Version {version} (build 1)'\n")
    file.chmod(0o755)
    return file


def machine(root: Path, *, admin_only: int | None = 0, status: str = NOBODY) -> Path:
    """A /proc of a machine with a driver."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/status").write_text(status)
    if admin_only is not None:
        (root / "proc/driver/nvidia").mkdir(parents=True)
        (root / "proc/driver/nvidia/params").write_text(f"EnableMSI: 1\nRmProfilingAdminOnly: {admin_only}\n")
    return root


def test_a_machine_with_all_that_is_needed_has_no_problem(tmp_path: Path) -> None:
    root = machine(tmp_path)
    ncu = tool(root / "bin/ncu")
    probe = probe_nsight({"PATH": str(ncu.parent)}, root=root)
    assert (probe.path, probe.version, probe.restricted, probe.container) == (str(ncu), "2025.3.1.0", False, False)
    assert tool_problem(probe) is None
    assert permission_problem(probe) is None
    assert [finding.status for finding in counter_findings(probe)] == ["ok", "ok"]


def test_it_is_looked_for_on_path_then_in_cuda_home_then_where_installers_put_it(tmp_path: Path) -> None:
    assert find_ncu({"PATH": ""}, root=tmp_path) is None
    in_opt = [tool(tmp_path / "opt/nvidia/nsight-compute" / version / "ncu") for version in ("2025.4.0", "2025.10.0", "2024.1.1")]
    assert find_ncu({"PATH": ""}, root=tmp_path) == str(in_opt[1]), "the newest, by number"
    in_toolkit = tool(tmp_path / "usr/local/cuda-13.0/bin/ncu")
    assert find_ncu({"PATH": ""}, root=tmp_path) == str(in_toolkit)
    in_home = tool(tmp_path / "home/bin/ncu")
    assert find_ncu({"PATH": "", "CUDA_HOME": str(tmp_path / "home")}, root=tmp_path) == str(in_home)
    on_path = tool(tmp_path / "path/ncu")
    environ = {"PATH": str(on_path.parent), "CUDA_HOME": str(tmp_path / "home")}
    assert find_ncu(environ, root=tmp_path) == str(on_path)
    chosen = tool(tmp_path / "chosen/ncu-2025")
    assert find_ncu({**environ, "FUSEBENCH_NCU": str(chosen)}, root=tmp_path) == str(chosen)


def test_a_missing_one_is_told_with_where_it_was_looked_for(tmp_path: Path) -> None:
    found, remedy = tool_problem(probe_nsight({"PATH": ""}, root=machine(tmp_path))) or ("", "")
    assert "neither on PATH" in found
    assert "install Nsight Compute 2025.1 or newer" in remedy
    assert "FUSEBENCH_NCU" in remedy


def test_a_variable_that_names_no_program_is_told_and_nothing_else_is_tried(tmp_path: Path) -> None:
    ncu = tool(tmp_path / "bin/ncu")
    probe = probe_nsight({"PATH": str(ncu.parent), "FUSEBENCH_NCU": str(tmp_path / "gone")}, root=machine(tmp_path / "root"))
    found, _ = tool_problem(probe) or ("", "")
    assert "gone' is no program" in found


@pytest.mark.parametrize(("version", "old"), [("2024.3.2.0", True), ("2025.1.0.0", False), ("2025.3.1.0", False), ("2026.1.0.0", False)])
def test_an_old_one_is_refused_with_the_oldest_that_is_not(tmp_path: Path, version: str, old: bool) -> None:
    ncu = tool(tmp_path / "bin/ncu", version)
    problem = tool_problem(probe_nsight({"PATH": str(ncu.parent)}, root=machine(tmp_path / "root")))
    assert (problem is not None) is old
    if problem is not None:
        assert version in problem[0]
        assert "supported is 2025.1 and newer" in problem[0]


def test_one_that_does_not_tell_its_version_is_refused(tmp_path: Path) -> None:
    ncu = tmp_path / "ncu"
    ncu.write_text("#!/bin/sh\nexit 1\n")
    ncu.chmod(0o755)
    assert ncu_version(str(ncu)) == ""
    found, remedy = tool_problem(probe_nsight({"PATH": str(tmp_path)}, root=machine(tmp_path / "root"))) or ("", "")
    assert "does not tell its version" in found
    assert f"{ncu} --version" in remedy


def test_counter_permission_is_read_from_the_drivers_parameters(tmp_path: Path) -> None:
    params = tmp_path / "params"
    assert counters_restricted(params) is None
    for text, expected in (("RmProfilingAdminOnly: 1\n", True), ("X: 1\nRmProfilingAdminOnly: 0\n", False), ("X: 1\n", None)):
        params.write_text(text)
        assert counters_restricted(params) is expected


@pytest.mark.parametrize(("status", "expected"), [(NOBODY, False), (ROOT_IN_A_CONTAINER, False), (ROOT, True), (PERFMON, True)])
def test_capabilities_and_not_the_users_number_make_an_administrator(tmp_path: Path, status: str, expected: bool) -> None:
    file = tmp_path / "status"
    file.write_text(status)
    assert is_administrator(file) is expected


def test_a_restricted_driver_is_a_problem_for_users_and_none_for_administrators(tmp_path: Path) -> None:
    user = probe_nsight({"PATH": ""}, root=machine(tmp_path / "a", admin_only=1))
    found, remedy = permission_problem(user) or ("", "")
    assert "only administrators" in found
    assert "as root" in remedy
    assert "NVreg_RestrictProfilingToAdminUsers=0" in remedy
    assert permission_problem(probe_nsight({"PATH": ""}, root=machine(tmp_path / "b", admin_only=1, status=ROOT))) is None
    assert permission_problem(probe_nsight({"PATH": ""}, root=machine(tmp_path / "c", admin_only=None))) is None, "found out by trying"


def test_in_a_container_the_remedy_is_the_containers(tmp_path: Path) -> None:
    root = machine(tmp_path, admin_only=1, status=ROOT_IN_A_CONTAINER)
    (root / ".dockerenv").touch()
    probe = probe_nsight({"PATH": ""}, root=root)
    assert probe.container
    _, remedy = permission_problem(probe) or ("", "")
    assert remedy.startswith("start the container with --cap-add=SYS_ADMIN")
    assert "as root" not in remedy


@pytest.mark.parametrize(
    ("file", "text", "environ"),
    [
        (".dockerenv", "", {}),
        ("run/.containerenv", "", {}),
        ("proc/1/cgroup", "0::/kubepods/besteffort/pod1\n", {}),
        ("proc/1/cgroup", "0::/\n", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}),
        ("proc/1/cgroup", "0::/\n", {"container": "podman"}),
    ],
)
def test_a_container_is_known_by_what_its_engine_leaves(tmp_path: Path, file: str, text: str, environ: dict[str, str]) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    assert in_container(environ, root=tmp_path)


def test_a_plain_machine_is_no_container(tmp_path: Path) -> None:
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/cgroup").write_text("0::/init.scope\n")
    assert not in_container({}, root=tmp_path)


def test_nsight_computes_refusal_is_recognised() -> None:
    assert denies_permission("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters")
    assert not denies_permission("==WARNING== Note: Running with unmodified GPU clocks.")


def test_doctor_warns_of_each_problem_and_refuses_nothing() -> None:
    probe = NsightProbe(path="", version="", restricted=True, administrator=False, container=True)
    counters, ncu = counter_findings(probe)
    assert (counters.status, ncu.status) == ("warn", "warn")
    assert counters.remedy == permission_remedy(probe)
    assert ncu.remedy.endswith("only `fusebench ncu` needs it")
