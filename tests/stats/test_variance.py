from __future__ import annotations

import math

import numpy as np
import pytest

from fusebench.stats.variance import Components, components


def nested(processes: int, placements: int, rounds: int, sds: tuple[float, float, float], seed: int) -> list[list[list[float]]]:
    generator = np.random.default_rng(seed)
    shift = generator.normal(0, sds[0], (processes, 1, 1)) + generator.normal(0, sds[1], (processes, placements, 1))
    return (shift + generator.normal(0, sds[2], (processes, placements, rounds))).tolist()


def test_known_components_are_recovered() -> None:
    found = components(nested(200, 12, 10, (0.002, 0.005, 0.01), 1))
    assert found.rounds == pytest.approx(0.01, rel=0.03)
    assert found.placements == pytest.approx(0.005, rel=0.1)
    assert found.processes == pytest.approx(0.002, rel=0.2)
    assert found.rounds_per_placement == pytest.approx(10)
    assert found.replicate == pytest.approx(math.hypot(0.005, 0.01 / math.sqrt(10)), rel=0.05)


def test_groups_of_different_sizes_do_not_bias_the_components() -> None:
    generator = np.random.default_rng(2)
    found = []
    for seed in range(150):
        whole = nested(10, 8, 8, (0.004, 0.005, 0.01), seed)
        ragged = [[rounds[: generator.integers(2, 9)] for rounds in placements[: generator.integers(2, 9)]] for placements in whole]
        found.append(components(ragged))
    mean = [float(np.mean([getattr(one, name) ** 2 for one in found])) for name in ("rounds", "placements")]
    assert mean == pytest.approx([0.01**2, 0.005**2], rel=0.1)
    assert float(np.mean([one.processes**2 for one in found if one.processes is not None])) == pytest.approx(0.004**2, rel=0.2)


def test_balanced_components_are_those_of_the_textbook() -> None:
    data = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [9.0, 10.0]]]
    found = components(data)
    # Mean squares: rounds 4 x 0.5 / 4 = 0.5; placements (4 + 16) / 2 = 10; processes 2 x 4 x 2.5**2 = 50.
    assert found.rounds**2 == pytest.approx(0.5)
    assert found.placements**2 == pytest.approx((10 - 0.5) / 2)
    assert found.processes == pytest.approx(math.sqrt((50 - 10) / 4))


def test_absent_components_are_none_or_zero() -> None:
    assert components(nested(1, 20, 10, (0.0, 0.005, 0.01), 3)).processes is None
    assert components([[[1.0, 3.0], [1.0, 3.0]], [[1.0, 3.0], [1.0, 3.0]]]) == Components(
        rounds=pytest.approx(math.sqrt(2)), placements=0.0, processes=0.0, rounds_per_placement=2.0
    )


def test_more_rounds_do_not_average_out_placements_nor_placements_processes() -> None:
    found = components(nested(50, 12, 10, (0.002, 0.005, 0.01), 4))
    assert found.error(1, 12, 10**9) == pytest.approx(math.sqrt(found.processes**2 + found.placements**2 / 12))
    assert found.error(1, 10**9, 10) == pytest.approx(found.processes)
    assert found.error(4, 12, 20) == pytest.approx(found.error(1, 12, 20) / 2)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "at least one process"),
        ([[[1.0, 2.0]], []], "no process without placements"),
        ([[[1.0, 2.0], []]], "placement without rounds"),
        ([[[1.0], [2.0]]], "two rounds"),
        ([[[1.0, 2.0]], [[1.0, 2.0]]], "two placements"),
        ([[[1.0, math.nan], [1.0, 2.0]]], "finite"),
    ],
)
def test_refuses_designs_that_cannot_tell_the_levels_apart(data: list[list[list[float]]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        components(data)
