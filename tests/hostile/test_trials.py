"""`fusebench eval` catches hostile kernels and accuses no honest one; a judge in one process believes the same hostile kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.eval_trials import Judged, Settings, describe, report
from helpers.naive_judge import judge
from helpers.trials import Corpus, Trial

CORPUS = Corpus()
SAMPLE = ("plain_two_norms", "idle_after_three_calls", "lazy_tuple", "close_to_anything", "forged_document")
"""An honest kernel, and hostile ones of four causes."""
BELIEVED = ("stale_output_buffer", "by_storage_offset", "expected_from_gc")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    """A warm judge: every trial is a fresh process, the judge and the baseline stay.

    Trials are compared, not timed: `python -m helpers.eval_trials` judges speedups too, and needs a quiet machine for it.
    """
    warm = Judged(CORPUS, tmp_path_factory.mktemp("trials"), Settings(stage="check", budget=120.0), warm=True)
    yield warm
    warm.close()


def named(trial: Trial) -> str:
    return trial.name


def test_the_judge_is_not_fooled_by_a_sample(judged: Judged) -> None:
    outcomes = [judged.evaluate(one) for one in CORPUS.trials if one.name in SAMPLE]
    assert len(outcomes) == len(SAMPLE)
    assert all(one.well for one in outcomes), report(outcomes)


@pytest.mark.exhaustive
@pytest.mark.parametrize("trial", [one for one in CORPUS.trials if not one.gpu], ids=named)
def test_the_judge_is_not_fooled(judged: Judged, trial: Trial) -> None:
    outcome = judged.evaluate(trial)
    assert outcome.well, describe(outcome)


@pytest.mark.parametrize("name", BELIEVED)
def test_a_judge_in_one_process_believes_it(name: str, tmp_path: Path) -> None:
    """Otherwise a trial would prove nothing about the judge that does not."""
    answer = judge(name, tmp_path)
    assert answer["passed"], answer


@pytest.mark.exhaustive
@pytest.mark.parametrize("trial", [one for one in CORPUS.trials if (one.naive or one.honest) and not (one.gpu or one.dear)], ids=named)
def test_a_judge_in_one_process_believes_every_trap(trial: Trial, tmp_path: Path) -> None:
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
