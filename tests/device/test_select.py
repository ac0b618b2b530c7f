"""Which device a command means."""

from __future__ import annotations

import msgspec
import pytest

from fusebench.device import nvml as nvml_backend
from fusebench.device import resolve_device
from fusebench.device.readings import GpuUnavailableError
from fusebench.device.select import cpu_model
from fusebench.errors import DeviceUnfitError, UsageError
from fusebench.naming import device_slug
from fusebench.schema import ExitCode

A = "GPU-aaaa1111-0000-0000-0000-000000000000"
B = "GPU-bbbb2222-0000-0000-0000-000000000000"
C = "GPU-bbcc3333-0000-0000-0000-000000000000"


@pytest.fixture
def three(fake_gpu, gpu_identity):
    """Three equal GPUs, A, B and C in PCI order."""
    return fake_gpu(gpus=[gpu_identity(i, uuid) for i, uuid in enumerate((A, B, C))])


def seen(monitor, setting, **more):
    """UUIDs behind cuda:0, cuda:1, … under this CUDA_VISIBLE_DEVICES."""
    environ = ({} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}) | more
    found = []
    while True:
        try:
            found.append(resolve_device(f"cuda:{len(found)}", monitor, environ=environ).uuid)
        except DeviceUnfitError:
            return found


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, [A, B, C]),
        ("0,1,2", [A, B, C]),
        ("2,0", [C, A]),
        (" 1", [B]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,-1,0", [B]),
        ("0,7,1", [A]),
        ("1,1", []),
        ("1gpu2,2ampere", [B, C]),
        (B, [B]),
        (f"{C},{A}", [C, A]),
        ("GPU-bbbb", [B]),
        ("GPU-bb", []),
        ("GPU-aa,GPU-nothere,GPU-bbbb", [A]),
        ("GPU-aa,GPU-aaaa", []),
        ("GPU-aa,1", [A]),
        ("MIG-unknown", []),
    ],
)
def test_cuda_visible_devices_selects_as_cuda_does(three, setting, expected) -> None:
    assert seen(three, setting) == expected


def test_torch_index_and_nvml_index_are_kept_apart(three) -> None:
    device = resolve_device("cuda:0", three, environ={"CUDA_VISIBLE_DEVICES": "2"})
    assert (device.index, device.nvml_index, device.torch_name) == (0, 2, "cuda:0")


def test_mig_instance_is_found_and_locks_its_whole_gpu(fake_gpu, gpu_identity) -> None:
    whole = msgspec.structs.replace(gpu_identity(), mig_enabled=True)
    instance = msgspec.structs.replace(gpu_identity(0, "MIG-1234", "NVIDIA H200 MIG 1g.18gb"), parent_uuid=whole.uuid)
    monitor = fake_gpu(gpus=[whole], mig=[instance])
    device = resolve_device("cuda", monitor, environ={"CUDA_VISIBLE_DEVICES": "MIG-12"})
    assert (device.uuid, device.lock_key) == ("MIG-1234", whole.uuid)
    assert any("MIG" in warning for warning in resolve_device("cuda", monitor, environ={}).warnings)


def test_auto_takes_the_gpu_that_is_visible_and_else_the_cpu(three) -> None:
    assert resolve_device("auto", three, environ={}).uuid == A
    hidden = resolve_device("auto", three, environ={"CUDA_VISIBLE_DEVICES": ""})
    assert hidden.kind == "cpu"
    assert "hidden by CUDA_VISIBLE_DEVICES=''" in hidden.warnings[0]


def test_missing_gpu_is_exit_3_and_names_the_cause(three, fake_gpu, monkeypatch) -> None:
    with pytest.raises(DeviceUnfitError, match=r"3 GPUs present, all hidden by CUDA_VISIBLE_DEVICES='-1'; unset it") as hidden:
        resolve_device("cuda", three, environ={"CUDA_VISIBLE_DEVICES": "-1"})
    assert hidden.value.exit_code is ExitCode.DEVICE_UNFIT
    with pytest.raises(DeviceUnfitError, match="driver is there but finds no GPU"):
        resolve_device("cuda", fake_gpu(gpus=[]), environ={})
    with pytest.raises(DeviceUnfitError, match=r"visible are cuda:0 NVIDIA H200, cuda:1"):
        resolve_device("cuda:3", three, environ={})

    def no_driver():
        raise GpuUnavailableError("no NVIDIA driver library", "install the driver")

    monkeypatch.setattr(nvml_backend, "open_monitor", no_driver)
    with pytest.raises(DeviceUnfitError, match="--device cuda: no NVIDIA driver library; install the driver, or use --device cpu"):
        resolve_device("cuda")
    assert resolve_device("auto").kind == "cpu"


def test_ignored_and_repeated_entries_are_said(three) -> None:
    assert "'7' matches no GPU" in resolve_device("cuda", three, environ={"CUDA_VISIBLE_DEVICES": "0,7,1"}).warnings[0]
    with pytest.raises(DeviceUnfitError, match="twice"):
        resolve_device("cuda", three, environ={"CUDA_VISIBLE_DEVICES": "1,1"})


def test_unequal_gpus_in_cudas_own_order_are_warned_about(fake_gpu, gpu_identity) -> None:
    mixed = fake_gpu(gpus=[gpu_identity(0, A), gpu_identity(1, B, "NVIDIA L4")])
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in resolve_device("cuda", mixed, environ={}).warnings[0]
    assert "CUDA_DEVICE_ORDER" in resolve_device("cuda", mixed, environ={"CUDA_VISIBLE_DEVICES": "1"}).warnings[0]
    for harmless in ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {"CUDA_VISIBLE_DEVICES": B}):
        assert resolve_device("cuda", mixed, environ=harmless).warnings == ()


@pytest.mark.parametrize("spec", ["gpu", "cuda:", "cuda:-1", "CUDA", "", "cpu:0", "cuda:0x"])
def test_bad_spec_is_a_usage_error(three, spec) -> None:
    with pytest.raises(UsageError, match="expected auto, cpu, cuda or cuda:N"):
        resolve_device(spec, three)


def test_slug_names_the_model(three, tmp_path) -> None:
    assert resolve_device("cuda", three, environ={}).slug == "nvidia_h200"
    cpu = resolve_device("cpu")
    assert cpu.slug == device_slug(cpu.name)
    assert cpu.torch_name == "cpu"
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 7B13\n")
    assert cpu_model(tmp_path / "cpuinfo") == "AMD EPYC 7B13"
    assert cpu_model(tmp_path / "absent")


@pytest.mark.gpu
def test_the_gpu_that_is_checked_is_the_one_that_torch_uses() -> None:
    torch = pytest.importorskip("torch")
    device = resolve_device("cuda")
    properties = torch.cuda.get_device_properties(device.index)
    assert device.uuid == f"GPU-{properties.uuid}"
    assert device.compute_capability == (properties.major, properties.minor)
