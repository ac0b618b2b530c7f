"""Accuracy comparisons between days never accuse equal code: real checks on freshly drawn inputs, and every pair of stored records."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from fusebench.accuracy import check_kernel
from fusebench.config import find_project
from fusebench.registry import Collection, Kernel, Op, load_collection
from fusebench.schema import FAILED_STATUSES, Accuracy, OutputError, Run
from fusebench.store.baselines import list_baselines
from fusebench.store.history_file import read_history_file
from fusebench.suites import load_suite, suite_names
from fusebench.verdict.accuracy_change import accuracy_loss
from fusebench.verdict.comparability import case_differences
from helpers.matrices import few

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
ROWS = (1, 6, 33)
"""Tokens that cases are shrunk to: errors of few rows scatter most between draws."""
HARD = ("edges_norms:residual_form_scalar", "edges_select01:residual_index_random_int64")
"""Cases where few numbers of a draw decide how large every rounding error is: without the spread between draws, pairs of equal code were
accused."""
ORDINARY = ("qknorm_rope:flux_1024", "norm_tanh_mul_add:odd_rows", "norm_scale_shift:bench_128x1024")


@cache
def collection() -> Collection:
    return load_collection([ROOT / "kernels"], entry_points=False)


@cache
def small_cases() -> dict[str, tuple[Op, Any]]:
    """By `suite:case@rows`, op and parameters of every distinct shipped case that is shrunk to so many tokens."""
    project, found, seen = find_project(ROOT), {}, set()
    for name in suite_names(project):
        for case in load_suite(name, project, collection().ops).cases:
            op = collection().op(case.op)
            for rows in ROWS:
                params = op.shrink(op.parse_params(case.params), rows)
                if (op.name, repr(params)) not in seen:
                    seen.add((op.name, repr(params)))
                    found[f"{case.key}@{rows}"] = op, params
    return found


def checks(key: str, count: int, *, fresh: bool = False) -> list[Accuracy]:
    """Checks of the split chain in torch, which all other kernels' errors are compared with, each on draws of its own.

    `fresh`: other draws in every run of the test.
    """
    op, params = small_cases()[key]
    split: Kernel = collection().kernel(f"{op.name}/{op.split_reference}")
    return [check_kernel(split, op, params, split=split, device=CPU, seed=None if fresh else number) for number in range(count)]


def accused(found: Sequence[Accuracy]) -> Iterator[str]:
    assert all(one.passed for one in found)
    return (loss for new, old in permutations(found, 2) if (loss := accuracy_loss(new, old)))


def worse(accuracy: Accuracy, factor: float) -> Accuracy:
    """The check of a kernel whose errors are this many times as large; the split chain's stay."""
    outputs = tuple(msgspec.structs.replace(one, rms=one.rms * factor) for one in accuracy.outputs)
    return msgspec.structs.replace(accuracy, outputs=outputs)


@pytest.mark.parametrize("case", few(ORDINARY, ORDINARY[1]))
def test_no_pair_of_checks_of_one_kernel_is_accused_and_a_loss_of_a_quarter_is_found(case: str) -> None:
    found = checks(f"{case}@6", 10)
    assert list(accused(found)) == []
    assert all(accuracy_loss(worse(new, 1.25), old) for new, old in permutations(found, 2))


@pytest.mark.parametrize("case", few(HARD, HARD[0]))
def test_draws_that_make_every_error_larger_are_no_loss_and_a_loss_beside_the_split_chain_is_found(case: str) -> None:
    found = checks(f"{case}@6", 6)
    assert list(accused(found)) == []
    assert all(accuracy_loss(worse(new, 2.0), old) for new, old in permutations(found, 2))


def test_one_draw_that_makes_most_of_an_error_is_no_loss_unless_the_split_chain_is_spared() -> None:
    """Two checks of the split chain in torch itself, edges_norms:residual_rms_float16 on six rows, as they were drawn once."""
    rare = OutputError(name="y", unit="value", rms=0.0846, split_rms=0.0846, floor=0.0, rounding=1.42861e-4, spread=0.951)
    usual = OutputError(name="y", unit="value", rms=1.6707e-4, split_rms=1.6707e-4, floor=0.0, rounding=1.37044e-4, spread=0.104)
    new, old = (msgspec.structs.replace(checks(f"{HARD[0]}@1", 1)[0], outputs=(one,), elements=84480) for one in (rare, usual))
    assert accuracy_loss(new, old) == ""
    assert accuracy_loss(worse(new, 1.25), old)
    spared = msgspec.structs.replace(new, outputs=(msgspec.structs.replace(rare, split_rms=usual.split_rms),))
    assert accuracy_loss(spared, old)


SCALAR = (
    (0.002299, 0.00156, 0.104),
    (0.001713, 0.001501, 0.072),
    (0.002519, 0.001437, 0.093),
    (0.002263, 0.001449, 0.086),
    (0.002919, 0.001432, 0.099),
    (0.002303, 0.001561, 0.107),
    (0.002239, 0.0014323, 0.093),
    (0.002437, 0.001533, 0.092),
)
"""RMS error, error of rounding alone, and spread of output y in eight checks of the split chain in torch, on six rows of
`edges_norms:residual_form_scalar`: each of a check's eleven draws has one scale for all rows.  With two standard errors of leeway, the
third, fifth and last check accused the second, by up to 1.42 x."""


def test_eight_checks_with_one_scale_per_draw_do_not_accuse_one_another_and_a_loss_beside_the_split_chain_is_found() -> None:
    known = checks(f"{HARD[0]}@1", 1)[0]
    found = [
        msgspec.structs.replace(
            known, elements=135168, outputs=(OutputError(name="y", unit="value", rms=rms, split_rms=rms, rounding=rounding, spread=spread),)
        )
        for rms, rounding, spread in SCALAR
    ]
    assert list(accused(found)) == []
    assert all(accuracy_loss(worse(new, 2.0), old) for new, old in permutations(found, 2))
    same_draws = [msgspec.structs.replace(one, outputs=found[1].outputs) for one in found]
    assert all(accuracy_loss(worse(new, 1.25), old) for new, old in permutations(same_draws, 2))


def test_one_draw_that_spoils_one_kernel_alone_accuses_it_of_no_loss_where_its_ratio_to_the_split_chain_rests_on_that_draw() -> None:
    """Output y2 of compiled@1 on norm_tanh_mul_add_norm_scale:wide_rows, in two nightlies of equal code on two H200s."""
    rare = OutputError(name="y2", unit="value", rms=0.0918, split_rms=3.191e-3, rounding=1.28388e-3, spread=0.925, ratio_spread=0.93)
    usual = OutputError(name="y2", unit="value", rms=2.8228e-3, split_rms=2.8228e-3, rounding=1.2841e-3, spread=0.079, ratio_spread=0.01)
    new, old = (msgspec.structs.replace(checks(f"{HARD[0]}@1", 1)[0], outputs=(one,), elements=630784) for one in (rare, usual))
    assert accuracy_loss(new, old) == ""
    every = msgspec.structs.replace(rare, ratio_spread=0.01)
    assert accuracy_loss(msgspec.structs.replace(new, outputs=(every,)), old), "the split chain is spared by every draw"


def test_two_draws_that_make_a_chain_of_its_own_rounding_worse_accuse_it_of_no_loss() -> None:
    """Output y2 of split_triton@1 on norm_tanh_mul_add_norm_scale:wide_rows, in two nightlies of equal code on H100s."""
    rare = OutputError(name="y2", unit="value", rms=2.4112e-3, split_rms=3.2479e-3, rounding=1.30502e-3, spread=0.2493, ratio_spread=0.143)
    usual = OutputError(name="y2", unit="value", rms=1.8279e-3, split_rms=2.8198e-3, rounding=1.2850e-3, spread=0.1041, ratio_spread=0.0276)
    new, old = (msgspec.structs.replace(checks(f"{HARD[0]}@1", 1)[0], outputs=(one,), elements=1261568) for one in (rare, usual))
    assert [accuracy_loss(one, other) for one, other in permutations((new, old), 2)] == ["", ""]
    alike = msgspec.structs.replace(new, outputs=(msgspec.structs.replace(rare, ratio_spread=usual.ratio_spread),))
    assert all(accuracy_loss(worse(one, 1.5), other) for one, other in permutations((alike, old), 2)), "a scatter by design hides no loss"


def test_an_older_record_without_a_spread_is_held_against_the_other_ones() -> None:
    """Output y of split_torch@1 on norm_scale_shift_gate_select01:batch1_128x3072: fresh draws, and the fixed ones of older records."""
    fresh = OutputError(name="y", unit="channel", rms=3.787e-3, split_rms=3.787e-3, rounding=1.67836e-3, spread=0.0912, ratio_spread=0.0)
    fixed = OutputError(name="y", unit="channel", rms=2.841e-3, split_rms=2.841e-3, rounding=1.67829e-3)
    known = msgspec.structs.replace(checks(f"{HARD[0]}@1", 1)[0], elements=3145728)
    new, old = (msgspec.structs.replace(known, outputs=(one,)) for one in (fresh, fixed))
    assert [accuracy_loss(one, other) for one, other in permutations((new, old), 2)] == ["", ""]
    assert all(accuracy_loss(worse(one, 1.6), other) for one, other in permutations((new, old), 2)), "a loss of its own shows"
    both = [msgspec.structs.replace(one, outputs=(msgspec.structs.replace(one.outputs[0], spread=None),)) for one in (new, old)]
    assert accuracy_loss(*both), "without any spread nothing explains it"


def test_the_oldest_records_are_held_against_the_scatter_of_the_ratio_to_the_split_chain() -> None:
    """Output y of fused_triton@2 on the same case: without a rounding error, only the ratio to the split chain's error is compared."""
    fresh = OutputError(name="y", unit="channel", rms=1.678e-3, split_rms=3.787e-3, rounding=1.678e-3, spread=0.0123, ratio_spread=0.0994)
    oldest = OutputError(name="y", unit="channel", rms=1.678e-3, split_rms=2.821e-3)
    known = msgspec.structs.replace(checks(f"{HARD[0]}@1", 1)[0], elements=3145728)
    new, old = (msgspec.structs.replace(known, outputs=(one,)) for one in (fresh, oldest))
    assert [accuracy_loss(one, other) for one, other in permutations((new, old), 2)] == ["", ""]
    usual = msgspec.structs.replace(new, outputs=(msgspec.structs.replace(fresh, ratio_spread=0.01),))
    assert accuracy_loss(worse(usual, 2.0), old), "a loss shows where the ratio scatters as usual"
    unknown = msgspec.structs.replace(new, outputs=(msgspec.structs.replace(fresh, ratio_spread=None),))
    assert accuracy_loss(old, unknown), "without any scatter nothing explains it"


@pytest.mark.exhaustive
def test_ten_thousand_pairs_of_checks_on_fresh_draws_accuse_nobody() -> None:
    keys = [key for key in small_cases() if not key.endswith("@33")]
    chosen = random.Random(19).sample(keys, 220) + [f"{case}@{rows}" for case in HARD for rows in ROWS]
    pairs, found = 0, []
    for key in chosen:
        made = checks(key, 8, fresh=True) if key in small_cases() else []
        pairs += len(made) * (len(made) - 1)
        found += [f"{key}: {loss}" for loss in accused(made)]
    assert pairs >= 10_000
    assert found == []


def stored(files: str) -> list[Run]:
    """The runs of the histories with such names, and the baselines."""
    histories = [run for file in sorted((ROOT / "results" / "history").glob(files)) for run in read_history_file(file)]
    return [*histories, *(run for _, run in list_baselines(ROOT / "results"))]


def compared(new: Run, old: Run) -> Iterator[tuple[Accuracy, Accuracy, str]]:
    """Accuracies of the same kernel and case in both runs, where neither failed."""
    before = {(one.case_key, one.kernel): one for one in old.results}
    cases = [{summary.case.key: summary.case for summary in run.cases} for run in (new, old)]
    for one in new.results:
        other = before.get((one.case_key, one.kernel))
        if other is None or one.accuracy is None or other.accuracy is None or FAILED_STATUSES & {one.status, other.status}:
            continue
        if not case_differences(cases[0][one.case_key], cases[1][one.case_key]):
            yield one.accuracy, other.accuracy, f"{one.kernel} on {one.case_key} in {new.id} and {old.id}"


def losses(pairs: Sequence[tuple[Run, Run]]) -> tuple[int, list[str]]:
    """The number of comparisons, both ways round, and the accusations."""
    count, found = 0, []
    for first, second in pairs:
        for one, other, where in compared(first, second):
            count += 2
            found += [f"{where}: {loss}" for loss in (accuracy_loss(one, other), accuracy_loss(other, one)) if loss]
    return count, found


def test_the_stored_baseline_and_the_newest_nightlies_accuse_no_kernel() -> None:
    *runs, baseline = stored("*.op_mix.parquet")
    count, found = losses([(baseline, run) for run in runs])
    assert count > 5_000
    assert found == []


@pytest.mark.exhaustive
def test_no_pair_of_stored_runs_accuses_a_kernel() -> None:
    """No kernel among them lost accuracy: code that changed was meant to keep it."""
    count, found = losses(list(combinations(stored("*.parquet"), 2)))
    assert count > 150_000
    assert found == []
