"""The targets of a calibration, and the arms that slow them down by a known share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from fusebench.config import find_project
from fusebench.registry import load_collection
from fusebench.runner.calibrate.targets import CALIBRATION_KERNELS, built_in_targets, comparing, fewest_first, pairs_at_once, targets_of
from fusebench.schema import Case, Injection, Role
from fusebench.suites import load_suite

ROWS, DELAY = (built_in_targets("cpu", (way,))[0] for way in ("rows", "delay"))


def test_every_pair_has_arms_of_its_own() -> None:
    wanted = comparing(ROWS, 5, {0.01: 2, 0.02: 1}, {0.01: 66_192, 0.02: 66_848})
    used = [arm for pair in wanted.pairs for arm in (pair.new, pair.old)]
    assert len(used) == len(set(used)) == len(wanted.arms) == 16
    assert sorted(wanted.nominal.values()) == [0.0] * 5 + [0.01, 0.01, 0.02]
    raised = {arm.name: arm.params for arm in wanted.arms if arm.params is not None}
    values = {pair.new: {0.01: 66_192, 0.02: 66_848}[nominal] for pair in wanted.pairs if (nominal := wanted.nominal[pair.name]) > 0}
    assert raised == {name: {**ROWS.case.params, "elements": value} for name, value in values.items()}


def test_fewer_pairs_at_once_where_their_arms_are_larger() -> None:
    rows, delay = (msgspec.structs.replace(one, bytes=100) for one in (ROWS, DELAY))
    elements = rows.case.params["elements"]
    assert pairs_at_once(rows, [elements, 3 * elements], 5000) == 5, "40 % of 5000 bytes, and 400 for each pair"
    assert pairs_at_once(rows, [], 5000) == 10
    assert pairs_at_once(rows, [100 * elements], 5000) == 1
    assert pairs_at_once(delay, [2000, 60_000], 5000) == 10, "a wait takes no memory"
    assert pairs_at_once(rows, [], 10**9) == pairs_at_once(rows, [2 * elements], None) == 18


def test_the_built_in_subjects_load_and_compute_what_they_say() -> None:
    import torch

    collection = load_collection([CALIBRATION_KERNELS], entry_points=False)
    assert collection.problems == []
    for kind in ("cpu", "cuda"):
        targets = built_in_targets(kind)
        assert len({one.case.key for one in targets}) == len(targets) == {"cpu": 4, "cuda": 12}[kind]
        assert built_in_targets(kind, ()) == []
        for one in targets:
            assert one.kernel in collection.kernels
            op = collection.op(one.case.op)
            assert op.parse_params(one.case.params).elements > 0
            assert one.key in one.case.params
    kernel = collection.kernel("planted/negate_and_wait@1")
    x = torch.tensor([1.0, -2.0])
    kernel(x, delay_ns=1000)
    assert x.tolist() == [-1.0, 2.0]


def test_selected_cases_give_the_newest_fused_kernel_that_can_be_timed(collection: Any, case: Case) -> None:
    (one,) = targets_of(collection, [case], "cpu", "*good*")
    assert (one.kernel, one.key, one.injection) == ("scale/good@1", "", Injection.ROWS)
    assert targets_of(collection, [case], "cpu", "*fast*") == [], "a CUDA kernel is not timed on a CPU"


def test_the_shipped_targets_are_real_kernels_of_every_op_role_language_and_size() -> None:
    root = Path(__file__).parents[3]
    shipped = load_collection([root / "kernels"], entry_points=False)
    cases = load_suite("calibration", find_project(root), shipped.ops).cases
    real, own = targets_of(shipped, cases, "cuda"), built_in_targets("cuda")
    assert len(real) / (len(real) + len(own)) >= 0.7
    gating = {Role.FUSED, Role.SPLIT}
    wanted = {(one.id.op, one.role, one.language) for one in shipped.kernels.values() if one.role in gating and not one.covers}
    kernels = [shipped.kernel(one.kernel) for one in real]
    assert {(one.id.op, one.role, one.language) for one in kernels} == wanted
    assert 0.3 < sum(one.role is Role.SPLIT for one in kernels) / len(kernels) < 0.6, "chains of launches"
    for op in shipped.ops:
        sizes = [one.bytes / 4e6 for one in real if one.case.op == op]  # microseconds at 4 TB/s
        assert min(sizes) < 7
        assert max(sizes) > 50
        assert any(7 < size < 50 for size in sizes)
    assert [one.case.name for one in real[: len(cases)]] == [case.name for case in cases], "every case before the next kernel of any"


def test_targets_that_are_known_least_come_first() -> None:
    targets = built_in_targets("cpu")
    known = {(one.case.key, one.kernel): count for one, count in zip(targets, (24, 0, 24), strict=False)}
    assert fewest_first(targets, known) == [targets[1], targets[3], targets[0], targets[2]]
