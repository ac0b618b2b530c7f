"""Names of metrics as users give them."""

from __future__ import annotations

import pytest

from fusebench.counters.metric_sets import missing, require_known, split_names, wanted
from fusebench.errors import UnknownNameError, UsageError

LISTED = ("dram__bytes_read", "dram__bytes_write", "smsp__inst_executed")


def test_names_come_from_repeated_and_comma_separated_options_once_each() -> None:
    assert split_names(["a__b.sum, c__d.avg", "a__b.sum"]) == ("a__b.sum", "c__d.avg")


@pytest.mark.parametrize("given", [[""], [" , "], ["group:memory__chart"], ["regex:dram.*"]])
def test_no_names_and_patterns_are_refused(given: list[str]) -> None:
    with pytest.raises(UsageError, match="--metrics"):
        split_names(given)


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UnknownNameError, match="unknown metric 'dram__bytes_raed'; did you mean 'dram__bytes_read'"):
        require_known(["smsp__inst_executed.sum", "dram__bytes_raed.sum"], LISTED)


def test_what_the_list_of_counters_leaves_out_may_be_asked_for() -> None:
    require_known(["launch__registers_per_thread", "sm__maximum_warps_per_active_cycle_pct", "dram__bytes_read"], LISTED)


def test_a_name_without_a_suffix_means_its_expansions() -> None:
    assert wanted("dram__bytes_read.sum", ["dram__bytes_read"])
    assert not wanted("dram__bytes_read_more.sum", ["dram__bytes_read"])
    assert not wanted("dram__bytes_read.avg", ["dram__bytes_read.sum"])
    assert missing(["dram__bytes_read", "x__y.sum"], ["dram__bytes_read.sum"]) == ["x__y.sum"]
