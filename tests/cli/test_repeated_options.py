"""`--kernel`, `--case` and `--op` repeat: each value selects, and one that matches nothing is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fusebench.cli.main import app
from fusebench.cli.shared.options import join_alternatives
from fusebench.schema import Case, KernelId

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)


def cases(*arguments: str) -> set[str]:
    result = CliRunner().invoke(app, ["list", "cases", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return {row["case"] for row in json.loads(result.stdout)}


def test_every_value_of_a_repeated_option_selects() -> None:
    first, second = "interleaved_256", "neox_partial_128"
    assert cases("--suite", "smoke", "--case", first, "--case", second) == {first, second}
    assert cases("--suite", "smoke", f"--case={second}", "--case", first) == {first, second}
    one, other = cases("--op", "qknorm_rope"), cases("--op", "rotary_embedding")
    assert cases("--op", "qknorm_rope", "--op", "rotary_embedding") == one | other


def test_repeated_kernels_are_all_listed() -> None:
    arguments = ["list", "kernels", "--op", "qknorm_rope", "--kernel", "fused_triton@1", "--kernel", "split_torch", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert [row["id"] for row in json.loads(result.stdout)] == ["qknorm_rope/fused_triton@1", "qknorm_rope/split_torch@1"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("cases", "--suite", "smoke", "--case", "interleaved_256", "--case", "neox_partial_129"), "unknown case 'neox_partial_129'"),
        (("kernels", "--kernel", "split_torch", "--kernel", "split_touch"), "unknown kernel 'split_touch'"),
        (("cases", "--op", "qknorm_rope", "--op", "rotary_embeding"), "unknown op 'rotary_embeding'"),
    ],
)
def test_a_value_that_selects_nothing_is_refused_whatever_the_others_do(arguments: tuple[str, ...], expected: str) -> None:
    result = CliRunner().invoke(app, ["list", *arguments])
    assert result.exit_code == 2
    assert expected in result.stderr


def test_options_are_joined_and_all_else_stays() -> None:
    given = ["--suite", "a", "--case", "x", "--suite", "b", "--case=y", "--json", "--", "--case", "z"]
    assert join_alternatives(given) == ["--suite", "a", "--case", "x,y", "--suite", "b", "--json", "--", "--case", "z"]
    assert join_alternatives(["--case"]) == ["--case"], "the parser says what is missing"


def test_patterns_with_commas_match_any_of_their_globs() -> None:
    case = Case(suite="s", name="flux_1024", op="o", params={})
    assert [case.matches(pattern) for pattern in ("a,flux_*", "a,b", "s:flux_1024,a")] == [True, False, True]
    kernel = KernelId.parse("o/fast@2")
    assert [kernel.matches(pattern) for pattern in ("slow,fast", "slow,fast@1", "o/*,slow")] == [True, False, True]
