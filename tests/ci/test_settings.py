"""`.fusebench/pull_request.toml` is read strictly: a mistake is named with its file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusebench.ci.settings import SETTINGS_FILE, read_settings
from fusebench.errors import SuiteError, UsageError

GOOD = 'suites = ["qknorm_rope"]\ngpus = ["h200", "b200"]\n'


def written(root: Path, text: str) -> Path:
    file = root / SETTINGS_FILE
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return root


def test_what_is_absent_has_a_default(tmp_path: Path) -> None:
    found = read_settings(written(tmp_path, GOOD))
    assert (found.suites, found.gpus, found.static_targets) == (("qknorm_rope",), ("h200", "b200"), ("sm_90",))
    assert (found.op, found.case, found.kernel, found.selection) == (None, "*", "*", ["--suite", "qknorm_rope"])
    assert (found.budget_minutes, found.wait_minutes, found.margin) == (20.0, 30.0, None)


def test_op_case_and_kernel_take_one_value_or_a_list(tmp_path: Path) -> None:
    text = GOOD + 'op = "qknorm_rope"\ncase = ["flux_*", "qwen_1024"]\nkernel = ["fused_triton@2"]\n'
    found = read_settings(written(tmp_path, text))
    assert " ".join(found.selection) == "--suite qknorm_rope --op qknorm_rope --case flux_* --case qwen_1024 --kernel fused_triton@2"


def test_this_repositorys_file_is_good() -> None:
    assert read_settings(Path(__file__).parents[2]).gpus


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("suites = [\n", "pull_request.toml:1: not valid TOML"),
        (GOOD + "gpu = 1\n", "pull_request.toml:3: gpu: found an unknown key"),
        (GOOD + "budget_minutes = '20'\n", "pull_request.toml:3: budget_minutes: found '20' (string), expected"),
        (GOOD + "\nbudget_minutes = 0\n", "pull_request.toml:4: budget_minutes: budget_minutes is 0; expected a number above 0"),
        (GOOD + "margin = nan\n", "pull_request.toml:3: margin"),
        ('suites = ["a"]\n', "found no key 'gpus', expected one"),
        ('suites = ["a"]\ngpus = []\n', "pull_request.toml:2: gpus: gpus holds nothing"),
        ('suites = ["a", "a"]\ngpus = ["x"]\n', "pull_request.toml:1: suites: suites holds a name twice"),
        ('suites = ["a", 2]\ngpus = ["x"]\n', "pull_request.toml:1: suites[1]: found 2 (integer), expected string"),
        (GOOD + 'case = ""\n', "pull_request.toml:3: case: case is empty"),
        (GOOD + 'kernel = ["a", "a"]\n', "pull_request.toml:3: kernel: kernel holds a name twice"),
        (GOOD + "case = []\n", "pull_request.toml:3: case: case holds nothing"),
        (GOOD + "op = 3\n", "pull_request.toml:3: op: found 3 (integer), expected"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SuiteError) as refused:
        read_settings(written(tmp_path, text))
    assert said in str(refused.value)


def test_a_missing_file_is_no_silent_default(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_settings(tmp_path)
