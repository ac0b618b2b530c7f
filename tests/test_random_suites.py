"""Random cases cover an op's whole parameter space, are as large as asked, and come again from their seed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from fusebench.cli.main import app
from fusebench.config import find_project
from fusebench.errors import UsageError
from fusebench.registry import Op, load_collection
from fusebench.schema import Case
from fusebench.suites import load_suite
from fusebench.suites.drawing import random_cases, suite_text

REPOSITORY = Path(__file__).parents[1]
TOY = Path(__file__).parent / "toy_project"
LOW, HIGH = 20_000_000, 400_000_000


@pytest.fixture(scope="module")
def ops() -> Mapping[str, Op]:
    return load_collection(find_project(REPOSITORY).kernels, kernels=False).ops


def drawn(ops: Mapping[str, Op], *names: str, count: int = 200, seed: int = 7, **bounds: int) -> list[Case]:
    chosen = [ops[name] for name in names or ops]
    return random_cases(chosen, suite="random", count=count, seed=seed, **{"at_least": LOW, "at_most": HIGH, **bounds})


def test_every_case_is_valid_within_the_bounds_and_each_op_has_its_share(ops: Mapping[str, Op]) -> None:
    cases = drawn(ops)
    assert len({case.key for case in cases}) == 200
    share = {name: sum(case.op == name for case in cases) for name in ops}
    assert set(share.values()) == {200 // len(ops), 200 // len(ops) + 1}
    sizes = [ops[case.op].minimum_bytes(ops[case.op].parse_params(case.params)) for case in cases]
    assert all(LOW <= size <= HIGH for size in sizes)
    assert sum(size < 90_000_000 for size in sizes) == pytest.approx(100, abs=25), "half of them below the middle of a logarithmic scale"


def test_every_declared_value_comes(ops: Mapping[str, Op]) -> None:
    """Dtypes, layouts, forms of modulation, head dimensions: each value of each op's parameters with few of them."""
    for op in ops.values():
        cases = drawn(ops, op.name, count=150)
        for name, groups in op.declaration.space.items():
            values = {value for group in groups for value in group}
            if len(values) <= 8:
                assert {case.params.get(name) for case in cases} == values, (op.name, name)


@pytest.mark.parametrize("name", ["norm_scale_shift", "norm_tanh_mul_add", "residual_norm_scale_shift_gate_select01"])
def test_widths_are_multiples_of_256_and_odd_ones(ops: Mapping[str, Op], name: str) -> None:
    widths = [case.params["hidden"] for case in drawn(ops, name, count=60)]
    assert 20 <= sum(width % 256 == 0 for width in widths) <= 45
    assert min(widths) < 1024
    assert max(widths) > 7168


def test_heads_are_grouped_packed_and_partly_rotated(ops: Mapping[str, Op]) -> None:
    params = [case.params for case in drawn(ops, "qknorm_rope", count=60)]
    assert any(one.get("kv_heads", one["heads"]) not in (1, one["heads"]) and one["packed"] for one in params)
    assert any(one.get("rope_dim", one["head_dim"]) % 16 for one in params)
    assert any(one["heads"] % 2 for one in params)
    assert any("rope_dim" not in one for one in params)


def test_a_seed_gives_the_same_cases_whatever_else_is_drawn(ops: Mapping[str, Op]) -> None:
    some = drawn(ops, "rotary_embedding", count=10)
    assert some == drawn(ops, "rotary_embedding", count=10)
    assert some == drawn(ops, "rotary_embedding", count=20)[:10]
    assert some[:5] == [case for case in drawn(ops, "norm_scale_shift", "rotary_embedding", count=10) if case.op == "rotary_embedding"]
    assert not {repr(case.params) for case in some} & {repr(case.params) for case in drawn(ops, "rotary_embedding", count=10, seed=8)}


def test_the_file_holds_the_cases(ops: Mapping[str, Op], tmp_path: Path) -> None:
    cases = drawn(ops, count=30)
    (tmp_path / "any.toml").write_text(suite_text("random", 'a "quoted" description', cases))
    assert list(load_suite(str(tmp_path / "any.toml"), find_project(tmp_path), ops).cases) == cases


def test_an_op_that_names_no_values_is_refused_with_the_line_to_add() -> None:
    toy = load_collection([TOY / "kernels"], kernels=False, entry_points=False).ops["scale"]
    with pytest.raises(UsageError, match=r"op scale does not say which values \w+ takes in a random case; add `space = .*scale/op\.py"):
        random_cases([toy], suite="random", count=1, seed=0, at_least=1, at_most=10)


def test_bounds_without_a_case_are_refused(ops: Mapping[str, Op]) -> None:
    with pytest.raises(UsageError, match=r"op qknorm_rope: 1000 draws gave no case of 2e-06 to 3e-06 MB; choose wider bounds"):
        drawn(ops, "qknorm_rope", count=1, at_least=2, at_most=3)


def test_an_op_without_tokens_is_drawn_until_it_fits(ops: Mapping[str, Op]) -> None:
    class Fixed(type(ops["norm_scale_shift"])):  # type: ignore[misc]
        token_fields = ()
        space: ClassVar[Mapping[str, Any]] = {**ops["norm_scale_shift"].space, "tokens": (8, 4096)}

    cases = random_cases([Fixed()], suite="random", count=5, seed=0, at_least=LOW, at_most=HIGH)
    assert {case.params["tokens"] for case in cases} == {4096}


@pytest.mark.usefixtures("forked_workers")
def test_the_command_writes_a_suite_that_other_commands_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    command = ["suite", "random", "--op", "rotary_embedding", "--op", "qknorm_rope", "--count", "3", "--seed", "5"]
    out = tmp_path / "random.toml"
    made = CliRunner().invoke(app, [*command, "--out", str(out)])
    assert (made.exit_code, made.stdout, made.stderr) == (0, "", f"wrote 3 cases into {out}\n")
    assert 'fusebench suite random --op rotary_embedding,qknorm_rope --count 3 --at-least 20 --at-most 400 --seed 5"' in out.read_text()
    listed = CliRunner().invoke(app, ["list", "cases", "--suite", str(out)])
    assert listed.exit_code == 0, listed.output
    assert listed.stdout.count("random_5") == 3
    refused = CliRunner().invoke(app, [*command, "--at-least", "500"])
    assert refused.exit_code == 2
    assert "--at-most 400: found less than --at-least 500" in refused.stderr
