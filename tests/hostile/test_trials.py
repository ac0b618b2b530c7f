"""`fusebench eval` catches hostile kernels and accuses no honest one; a judge in one process believes the same hostile kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.eval_trials import Judged, Settings
from helpers.trials import Corpus, Trial

CORPUS = Corpus()
SAMPLE = ("plain_rotation", "idle_after_three_calls", "expected_from_gc", "lazy_tuple", "close_to_anything", "forged_document")
"""An honest kernel, and one hostile one of each of five causes."""
BELIEVED = ("stale_output_buffer", "by_storage_offset", "expected_from_gc", "forged_document")


def some(names: tuple[str, ...], trials: list[Trial]) -> list[object]:
    """Every trial as a parameter, those outside `names` only in the exhaustive run."""
    return [pytest.param(one, id=one.name, marks=() if one.name in names else pytest.mark.exhaustive) for one in trials]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    """A warm judge: every trial is a fresh process, the judge and the baseline stay."""
    warm = Judged(CORPUS, tmp_path_factory.mktemp("trials"), Settings(stage="check", budget=60.0), warm=True)
    yield warm
    warm.close()


@pytest.mark.parametrize("trial", some(SAMPLE, [one for one in CORPUS.trials if not one.gpu]))
def test_the_judge_is_not_fooled(judged: Judged, trial: Trial) -> None:
    """Compared, not timed: speedups are judged by `python -m helpers.eval_trials`, which needs a quiet machine."""
    outcome = judged.evaluate(trial)
    assert outcome.well, f"{outcome.status}: {outcome.reason}"


@pytest.mark.parametrize(
    "trial", some(BELIEVED, [one for one in CORPUS.trials if not one.gpu and (one.honest or one.naive) and not one.dear])
)
def test_a_judge_in_one_process_believes_it(trial: Trial, tmp_path: Path) -> None:
    """Otherwise the trial would prove nothing about the judge that does not."""
    from helpers.naive_judge import judge

    answer = judge(trial.name, tmp_path)
    assert answer["passed"], answer


def test_every_trial_stands_for_itself() -> None:
    names = [one.name for one in CORPUS.trials]
    assert len(set(names)) == len(names)
    assert {one.op for one in CORPUS.trials} == {
        path.name for path in Path(__file__).parents[2].joinpath("kernels").iterdir() if path.name[0] != "_"
    }
    hostile = [one for one in CORPUS.trials if not one.honest]
    assert sum(not one.gpu for one in hostile) >= 80
    assert len(CORPUS.trials) - len(hostile) >= 40
