"""Between the entries of a table the predicted losses of kernels decide: which entries count, and how much."""

from __future__ import annotations

import msgspec
import pytest

from fusebench.registry.dispatching.ranking import Ranker
from fusebench.schema.dispatch import DispatchKey, TableEntry, TableGroup
from helpers.dispatch_tables import ENTRIES, FIRST, SECOND, entry, table


def grouped(*groups: tuple[dict[str, object], tuple[TableEntry, ...]]) -> Ranker:
    return Ranker(table(groups=tuple(TableGroup(kinds=kinds, entries=entries) for kinds, entries in groups)))


def test_of_entries_of_other_kinds_the_one_of_the_same_width_of_dtype_is_nearer() -> None:
    kinds = [{"dtype": dtype, "affine": affine} for dtype in ("bfloat16", "float32") for affine in (False, True)]
    ranker = grouped((kinds[0], (entry(64, *SECOND),)), (kinds[2], (entry(64, *FIRST),)))
    other_kind = ranker.rank(DispatchKey({"size": 64}, kinds[1]))
    assert other_kind.kernels == ("second@1", "first@1"), "affine alone differs, and there the width of the dtype, too"
    assert "(affine False)" in other_kind.why
    assert ranker.rank(DispatchKey({"size": 64}, kinds[3])).kernels == ("first@1", "second@1")


def test_a_trait_keeps_entries_apart_that_are_near_in_size() -> None:
    odd = msgspec.structs.replace(entry(1000, *SECOND), traits=("unaligned",))
    ranker = grouped(({}, (entry(1008, *FIRST), odd, entry(1040, *FIRST))))
    assert ranker.rank(DispatchKey({"size": 1002}, {}, ("unaligned",))).kernels[0] == "second@1"
    assert ranker.rank(DispatchKey({"size": 1002}, {})).kernels[0] == "first@1"


def test_a_size_counts_by_how_far_the_entries_lie_apart_in_it() -> None:
    """Rows differ by 16 doublings among the entries, widths by two: a doubling of the width lies farther than two of the rows."""

    def placed(rows: int, width: int, times: tuple[tuple[str, float], ...]) -> TableEntry:
        return msgspec.structs.replace(entry(0, *times), sizes={"rows": rows, "width": width})

    ranker = grouped(({}, (placed(1, 256, FIRST), placed(4096, 1024, FIRST), placed(1024, 512, SECOND), placed(65536, 512, SECOND))))
    assert ranker.rank(DispatchKey({"rows": 4096, "width": 512}, {})).kernels[0] == "second@1"


def test_one_disaster_of_a_kernel_does_not_outweigh_the_cases_that_it_wins() -> None:
    """first@1 is 5 % faster around the call, and takes twice as long in one case farther away."""
    usual, disaster = (("first@1", 1.0), ("second@1", 1.05)), (("second@1", 1.0), ("first@1", 2.0))
    ranker = grouped(({}, tuple(entry(size, *(disaster if size == 512 else usual)) for size in (64, 128, 256, 512, 1024))))
    assert ranker.rank(DispatchKey({"size": 200}, {})).kernels[0] == "first@1"


def test_a_kernel_that_was_timed_far_away_alone_is_not_predicted() -> None:
    tried = (("good@1", 0.5), *FIRST)
    ranker = grouped(({}, (entry(64, *FIRST), entry(72, *FIRST), entry(96, *FIRST), entry(1 << 10, *tried))))
    assert "good@1" not in ranker.rank(DispatchKey({"size": 80}, {})).kernels
    assert ranker.rank(DispatchKey({"size": 1 << 11}, {})).kernels[0] == "good@1"


def test_a_kernel_for_small_sizes_is_predicted_among_them_however_many_larger_ones_lack_it() -> None:
    """A call of 200 lies between two sizes that timed it; one of 300 lies beyond, and the larger ones around it count there."""
    small = [entry(size, ("few@1", 0.5), *FIRST) for size in (100, 256)]
    large = [entry(size, *FIRST) for size in range(320, 640, 32)]
    ranker = grouped(({}, (*small, *large)))
    assert ranker.rank(DispatchKey({"size": 200}, {})).kernels[0] == "few@1"
    assert "few@1" not in ranker.rank(DispatchKey({"size": 300}, {})).kernels


def test_entries_that_lack_a_newer_kernel_do_not_make_the_older_ones_look_better() -> None:
    """All say that second@1 is 5 % behind first@1. Those around the call know newer@1, 20 % faster than both."""
    older = [entry(size, ("first@1", 1.0), ("second@1", 1.05)) for size in (64, 72, 80, 88, 512, 640)]
    newer = [entry(size, ("newer@1", 0.8), ("first@1", 1.0)) for size in (100, 102, 104, 106)]
    ranking = grouped(({}, (*older[:4], *newer, *older[4:]))).rank(DispatchKey({"size": 103}, {}))
    kernels = ranking.kernels
    assert kernels.index("newer@1") < kernels.index("first@1") < kernels.index("second@1"), ranking.why


@pytest.mark.parametrize(("lead", "first"), [(0.05, "first__wide@1"), (0.005, "first@1")])
def test_a_choice_is_predicted_where_it_is_ahead_by_more_than_noise(lead: float, first: str) -> None:
    times = (("first__wide@1", 1.0 - lead), ("first@1", 1.0), ("second@1", 1.05))
    ranker = grouped(({}, tuple(entry(size, *times) for size in (64, 128, 256))))
    assert ranker.rank(DispatchKey({"size": 200}, {})).kernels[0] == first


def test_a_call_of_other_sizes_has_no_prediction() -> None:
    ranking = grouped(({}, ENTRIES)).rank(DispatchKey({"rows": 64}, {}))
    assert (ranking.kernels, ranking.why) == ((), "no measured case has such sizes: rows 64")
