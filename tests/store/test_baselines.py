from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from fusebench.errors import RunRecordError
from fusebench.naming import device_slug
from fusebench.schema import Status
from fusebench.store import baselines
from fusebench.store.baselines import baseline_folder, list_baselines, load_baseline, objections, promote, promotions
from fusebench.store.run_folder import RUN_FILE, SAMPLES_FILE, read_run, write_run


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H200", "nvidia_h200"),
        ("NVIDIA H100 80GB HBM3", "nvidia_h100_80gb_hbm3"),
        ("AMD EPYC 9B14", "amd_epyc_9b14"),
        ("../..", "unknown_device"),
    ],
)
def test_a_device_name_becomes_one_safe_folder(name: str, slug: str) -> None:
    assert device_slug(name) == slug


def test_promoting_keeps_the_run_with_its_views(tmp_path: Path, synthetic: ModuleType) -> None:
    run = synthetic.make_run()
    folder = write_run(tmp_path / "runs", run, synthetic.make_samples(run))
    (folder / "report.md").write_text("report")
    (folder / "speedup.png").write_bytes(b"png")
    target = promote(folder, tmp_path)
    assert target == tmp_path / "baselines" / "nvidia_h200" == baseline_folder(tmp_path, "nvidia_h200")
    tables = {"cases.parquet", "kernels.parquet", "results.parquet"}
    assert {path.name for path in target.iterdir()} == {"report.md", RUN_FILE, SAMPLES_FILE, "speedup.png", *tables}
    assert load_baseline(tmp_path, "NVIDIA H200") == run
    assert load_baseline(tmp_path, "NVIDIA B200") is None


def test_a_new_baseline_replaces_the_old_and_leaves_nothing_behind(tmp_path: Path, synthetic: ModuleType) -> None:
    for name in ("r1", "r2"):
        promote(write_run(tmp_path / "runs", synthetic.make_run(run_id=name), []), tmp_path)
    assert [(folder.name, run.id) for folder, run in list_baselines(tmp_path)] == [("nvidia_h200", "r2")]
    assert [path.name for path in (tmp_path / "baselines").iterdir()] == ["nvidia_h200"]


def test_each_device_model_has_its_own(tmp_path: Path, synthetic: ModuleType) -> None:
    assert list_baselines(tmp_path) == []
    for name in ("NVIDIA H200", "NVIDIA B200"):
        run = synthetic.make_run(run_id=device_slug(name), environment={"device_name": name})
        promote(write_run(tmp_path / "runs", run, []), tmp_path)
    assert [folder.name for folder, _ in list_baselines(tmp_path)] == ["nvidia_b200", "nvidia_h200"]


def test_an_empty_folder_is_no_baseline_and_one_without_its_record_says_what_to_do(tmp_path: Path, synthetic: ModuleType) -> None:
    folder = promote(write_run(tmp_path / "runs", synthetic.make_run(), []), tmp_path)
    (folder / RUN_FILE).unlink()
    for read in (lambda: load_baseline(tmp_path, "NVIDIA H200"), lambda: list_baselines(tmp_path)):
        with pytest.raises(RunRecordError, match=r"nvidia_h200: a baseline without run.json; restore it from git, or delete the folder"):
            read()
    for path in folder.iterdir():
        path.unlink()
    assert load_baseline(tmp_path, "NVIDIA H200") is None
    assert list_baselines(tmp_path) == []


@pytest.mark.parametrize("flaw", ["incomplete", "failed", "not fit", "uncommitted", "samples are missing"])
def test_a_run_that_should_not_be_believed_needs_force(tmp_path: Path, synthetic: ModuleType, flaw: str) -> None:
    run = {
        "incomplete": synthetic.make_run(complete=False),
        "failed": synthetic.make_run(status={("flux_1024", synthetic.FUSED): (Status.CRASHED, "boom")}),
        "not fit": synthetic.make_run(exit_code=3),
        "uncommitted": synthetic.make_run(environment={"git_dirty": True}),
        "samples are missing": synthetic.make_run(),
    }[flaw]
    folder = write_run(tmp_path / "runs", run, [])
    if flaw == "samples are missing":
        (folder / SAMPLES_FILE).unlink()
    assert len(objections(run, folder)) == 1
    with pytest.raises(RunRecordError, match=flaw) as caught:
        promote(folder, tmp_path)
    assert "--force" in str(caught.value)
    assert load_baseline(tmp_path, "NVIDIA H200") is None
    promote(folder, tmp_path, force=True)
    assert load_baseline(tmp_path, "NVIDIA H200") == run


def test_a_run_without_measurements_is_never_a_baseline(tmp_path: Path, synthetic: ModuleType) -> None:
    nothing = {(case, kernel): (Status.CHECKED, "") for case in synthetic.CASES for kernel in synthetic.KERNELS}
    folder = write_run(tmp_path / "runs", synthetic.make_run(status=nothing), [])
    with pytest.raises(RunRecordError, match="measured nothing"):
        promote(folder, tmp_path, force=True)


@pytest.mark.parametrize("name", [RUN_FILE, SAMPLES_FILE])
def test_the_old_baseline_outlives_a_promotion_that_fails(tmp_path: Path, synthetic: ModuleType, name: str) -> None:
    old = synthetic.make_run(run_id="old")
    promote(write_run(tmp_path / "runs", old, []), tmp_path)
    folder = write_run(tmp_path / "runs", synthetic.make_run(run_id="new"), [])
    (folder / name).write_bytes((folder / name).read_bytes()[:-30])
    with pytest.raises(RunRecordError, match="truncated"):
        promote(folder, tmp_path, force=True)  # its seal is the first objection
    (folder / name).unlink()
    with pytest.raises(RunRecordError, match=r"missing|not a run folder"):
        promote(folder, tmp_path)
    assert load_baseline(tmp_path, "NVIDIA H200") == old
    assert [path.name for path in (tmp_path / "baselines").iterdir()] == ["nvidia_h200"]


def test_the_old_baseline_returns_when_the_last_rename_fails(
    tmp_path: Path, synthetic: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(write_run(tmp_path / "runs", synthetic.make_run(run_id="old"), []), tmp_path)
    folder = write_run(tmp_path / "runs", synthetic.make_run(run_id="new"), [])
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise OSError("disk gone")
        return rename(self, target)

    monkeypatch.setattr(baselines.Path, "rename", failing)
    with pytest.raises(OSError, match="disk gone"):
        promote(folder, tmp_path)
    assert read_run(tmp_path / "baselines" / "nvidia_h200").id == "old"


def test_a_baseline_cannot_be_promoted_onto_itself(tmp_path: Path, synthetic: ModuleType) -> None:
    target = promote(write_run(tmp_path / "runs", synthetic.make_run(), []), tmp_path)
    with pytest.raises(RunRecordError, match="baseline already"):
        promote(target, tmp_path)


def test_a_baseline_that_was_replaced_while_it_grew_is_not_overwritten(tmp_path: Path, synthetic: ModuleType) -> None:
    old, other, new = (write_run(tmp_path / "runs", synthetic.make_run(run_id=name), []) for name in ("old", "other", "new"))
    target = promote(old, tmp_path)
    grown, joined = read_run(target), read_run(new)
    promote(other, tmp_path)
    with pytest.raises(RunRecordError, match="was replaced while runs were added to it; nothing was changed"):
        promote(new, tmp_path, joined=joined, others=[target], grown=grown)
    assert read_run(target).id == "other"
    promote(new, tmp_path, joined=joined, others=[target], grown=read_run(target))
    assert read_run(target).id == "new"


def test_a_run_whose_cold_samples_were_warm_is_objected_to(tmp_path: Path, synthetic: ModuleType) -> None:
    run = synthetic.make_run()
    folder = write_run(tmp_path, run, [])
    warm = msgspec.structs.replace(run, cases=[msgspec.structs.replace(run.cases[0], not_cold="9 TB/s"), *run.cases[1:]])
    assert objections(run, folder) == []
    assert objections(warm, folder) == ["1 cases are labelled cold and are not: qknorm_rope:flux_1024"]


def test_a_run_with_a_suspicious_time_is_objected_to(tmp_path: Path, synthetic: ModuleType) -> None:
    run = synthetic.make_run()
    folder = write_run(tmp_path, run, [])
    first = msgspec.structs.replace(run.results[0], suspicious="it left work behind")
    assert objections(msgspec.structs.replace(run, results=[first, *run.results[1:]]), folder) == [
        f"1 times are suspicious: {first.kernel} on {first.case}"
    ]


def test_promotions_at_once_each_leave_their_line(tmp_path: Path, synthetic: ModuleType) -> None:
    folders = [write_run(tmp_path / "runs", synthetic.make_run(run_id=f"r{one}"), []) for one in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda folder: promote(folder, tmp_path, reason="a test"), folders))
    kept = promotions(baseline_folder(tmp_path, "nvidia_h200"))
    assert sorted(one.run for one in kept) == [f"r{one}" for one in range(6)]
    assert [one.replaced for one in kept[1:]] == [one.run for one in kept[:-1]]
