"""Attribution of device activities to the calls that issued them, on events that no profiler made."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from fusebench.errors import TimerError
from fusebench.schema import ExitCode
from fusebench.timing.arm import Arm, CallTiming
from fusebench.timing.timers.attribution import attribute
from fusebench.timing.timers.cupti import CuptiTimer

NAMES = ["copy", "scale/split@1"]


@dataclass
class Event:
    """As the profiler gives one; `number` counts ranges and operators in order of their start, `tag` names the innermost one."""

    label: str
    device: str = "DeviceType.CPU"
    number: int = 0
    tag: int = 0
    start: int = 0
    end: int = 0
    annotation: bool = False

    def name(self) -> str:
        return self.label

    def device_type(self) -> str:
        return self.device

    def is_user_annotation(self) -> bool:
        return self.annotation

    def correlation_id(self) -> int:
        return self.number

    def linked_correlation_id(self) -> int:
        return self.tag

    def start_ns(self) -> int:
        return self.start

    def end_ns(self) -> int:
        return self.end


def between(number: int) -> Event:
    return Event("fusebench:between", number=number)


def call(index: int, number: int) -> Event:
    return Event(f"fusebench:call:{index}", number=number)


def activity(tag: int, start: int, end: int, label: str = "kernel") -> Event:
    return Event(label, device="DeviceType.CUDA", tag=tag, start=start, end=end)


def ranges() -> list[Event]:
    """Two calls, numbered 20 and 40, between ranges 10, 30 and 50."""
    return [between(10), call(0, 20), between(30), call(1, 40), between(50)]


def test_a_launch_belongs_to_the_range_that_issued_it() -> None:
    events = [*ranges(), activity(20, 100, 150), activity(40, 300, 390)]
    assert attribute(events, NAMES) == [CallTiming(50, 50, 1), CallTiming(90, 90, 1)]


def test_a_launch_of_an_operator_inside_a_range_belongs_to_that_range() -> None:
    events = [*ranges(), Event("aten::mul", number=21), Event("aten::add", number=22), Event("aten::neg", number=41)]
    events += [activity(21, 100, 110), activity(22, 120, 130), activity(41, 300, 310)]
    assert [timing.kernels for timing in attribute(events, NAMES)] == [2, 1]


def test_no_timestamp_is_consulted_for_the_attribution() -> None:
    """A launch of the first call that the device ran after the second call's."""
    events = [*ranges(), activity(21, 900, 1000), activity(41, 300, 310)]
    assert attribute(events, NAMES) == [CallTiming(100, 100, 1), CallTiming(10, 10, 1)]


def test_copies_and_fills_count_as_activities() -> None:
    events = [*ranges(), activity(20, 0, 10, "Memcpy DtoD"), activity(20, 20, 25, "Memset"), activity(20, 30, 40), activity(40, 50, 60)]
    assert attribute(events, NAMES)[0] == CallTiming(span_ns=40, busy_ns=25, kernels=3)


def test_what_happens_between_calls_is_not_counted() -> None:
    restored_and_evicted = [activity(10, 0, 50), activity(11, 50, 99), activity(31, 160, 290), activity(55, 400, 500)]
    events = [*ranges(), *restored_and_evicted, activity(20, 100, 150), activity(40, 300, 390)]
    assert attribute(events, NAMES) == [CallTiming(50, 50, 1), CallTiming(90, 90, 1)]


@pytest.mark.parametrize(
    ("intervals", "span", "busy"),
    [
        ([(100, 200), (150, 250)], 150, 150),
        ([(100, 400), (150, 250)], 300, 300),
        ([(100, 400), (150, 250), (500, 510)], 410, 310),
        ([(100, 110), (110, 120)], 20, 20),
    ],
    ids=["overlapping", "one inside another", "and a gap", "touching"],
)
def test_busy_is_the_union_and_span_the_whole(intervals: list[tuple[int, int]], span: int, busy: int) -> None:
    events = [*ranges(), *(activity(20, start, end) for start, end in intervals), activity(40, 900, 910)]
    assert attribute(events, NAMES)[0] == CallTiming(span, busy, len(intervals))


def test_the_order_of_events_does_not_matter() -> None:
    events = [*ranges(), *(activity(tag, 10 * tag, 10 * tag + 7) for tag in (10, 20, 21, 22, 31, 40, 41, 50))]
    due = attribute(events, NAMES)
    for seed in range(10):
        random.Random(seed).shuffle(events)
        assert attribute(events, NAMES) == due


def test_the_shadow_of_a_range_on_the_device_is_neither_an_activity_nor_a_range() -> None:
    shadow = Event("fusebench:call:0", device="DeviceType.CUDA", number=20, tag=20, start=0, end=10_000, annotation=True)
    assert attribute([*ranges(), shadow, activity(20, 100, 150), activity(40, 300, 390)], NAMES)[0] == CallTiming(50, 50, 1)


@pytest.mark.parametrize("lost", [1, 3], ids=["first", "second"])
def test_a_lost_call_range_is_an_error_that_names_its_arm(lost: int) -> None:
    events = [*ranges(), activity(20, 100, 150), activity(40, 300, 390)]
    del events[lost]
    with pytest.raises(TimerError, match=rf"kept 4 ranges of 5, without call {lost // 2} of arm '{NAMES[lost // 2]}'"):
        attribute(events, NAMES)


@pytest.mark.parametrize("lost", [0, 2, 4])
def test_a_lost_range_between_calls_is_an_error(lost: int) -> None:
    """Otherwise the next call's preparation would be counted as part of this call."""
    events = [*ranges(), activity(20, 100, 150), activity(31, 160, 290), activity(40, 300, 390)]
    del events[lost]
    with pytest.raises(TimerError, match="kept 4 ranges of 5"):
        attribute(events, NAMES)


def test_an_activity_without_a_tag_is_an_error() -> None:
    with pytest.raises(TimerError, match=r"'stray' carries no correlation .*another thread"):
        attribute([*ranges(), activity(20, 100, 150), activity(40, 300, 390), activity(0, 500, 510, "stray")], NAMES)


def test_a_call_without_an_activity_is_an_error_that_names_its_arm() -> None:
    with pytest.raises(TimerError, match=r"call 1 of arm 'scale/split@1' left no device activity") as caught:
        attribute([*ranges(), activity(20, 100, 150), activity(31, 160, 290)], NAMES)
    assert caught.value.exit_code is ExitCode.DEVICE_UNFIT


class Recorded(CuptiTimer):
    """One activity per call, 20 ns long in the first that is made, 40 in the second and so on; `without` takes records away."""

    def __init__(self, without: Callable[[Event], bool] = lambda event: False) -> None:
        super().__init__()
        self.made: list[str] = []
        self._without = without

    def record(self, calls: Sequence[Arm], prepare: Callable[[Arm], None]) -> list[Event]:
        self.made.extend(arm.name for arm in calls)
        tags = range(20, 20 * len(calls) + 20, 20)
        marks = [between(10), *(event for place, tag in enumerate(tags) for event in (call(place, tag), between(tag + 10)))]
        launches = [launch(900 + tag, tag) for tag in tags]
        activities = [of_launch(900 + tag, tag, 1000 * tag, 1000 * tag + tag) for tag in tags]
        return [event for event in (*marks, *launches, *activities) if not self._without(event)]


def arms(*names: str) -> list[Arm]:
    return [Arm(name, lambda: None, lambda: None) for name in names]


def test_the_first_call_of_a_profile_is_made_once_more_and_not_counted() -> None:
    timer = Recorded()
    assert [timing.span_ns for timing in timer.time_calls(arms("a", "b"), lambda arm: None)] == [40, 60]
    assert timer.made == ["a", "a", "b"]


LOSSES: dict[str, Callable[[int], Callable[[Event], bool]]] = {
    "left no device activity": lambda tag: lambda event: event.tag == tag,
    "made 1 launches that left no device activity": lambda tag: lambda event: event.device.endswith("CUDA") and event.tag == tag,
    "kept 6 ranges of 7": lambda tag: lambda event: event.label.startswith("fusebench:call:") and event.number == tag,
}


@pytest.mark.parametrize("said", LOSSES)
@pytest.mark.parametrize(
    ("place", "named"),
    [(0, "the extra first call (of arm 'a', not kept)"), (1, "call 0 of arm 'a'"), (2, "call 1 of arm 'b'")],
    ids=["the one not kept", "the first asked for", "the second"],
)
def test_a_message_numbers_the_calls_that_were_asked_for(said: str, place: int, named: str) -> None:
    timer = Recorded(without=LOSSES[said](20 * place + 20))
    with pytest.raises(TimerError) as caught:
        timer.time_calls(arms("a", "b"), lambda arm: None)
    assert said in str(caught.value)
    assert named in str(caught.value)
    assert str(caught.value).count("of arm") == 1


def launch(number: int, tag: int, name: str = "cudaLaunchKernel") -> Event:
    """The host's record of a launch; `number` is the id that its activity shares."""
    return Event(name, number=number, tag=tag)


def of_launch(number: int, tag: int, start: int, end: int) -> Event:
    return Event("kernel", device="DeviceType.CUDA", number=number, tag=tag, start=start, end=end)


def launched() -> list[Event]:
    """Two launches in the first call, one in the second, and one between them."""
    tags = {901: 20, 902: 20, 903: 31, 904: 40}
    pairs = [(launch(number, tag, "cuLaunchKernelEx"), of_launch(number, tag, number, number + 1)) for number, tag in tags.items()]
    return [*ranges(), *(event for pair in pairs for event in pair)]


def test_a_launch_whose_activity_was_dropped_is_an_error_although_its_call_has_others() -> None:
    assert [timing.kernels for timing in attribute(launched(), NAMES)] == [2, 1]
    for lost in (901, 902):
        events = [one for one in launched() if not (one.device.endswith("CUDA") and one.number == lost)]
        with pytest.raises(TimerError, match=r"call 0 of arm 'copy' made 1 launches that left no device activity"):
            attribute(events, NAMES)


def test_a_lost_activity_between_calls_changes_no_figure_and_is_no_error() -> None:
    events = [one for one in launched() if not (one.device.endswith("CUDA") and one.number == 903)]
    assert attribute(events, NAMES) == attribute(launched(), NAMES)


def test_a_profiler_that_numbers_launches_and_activities_apart_is_not_taken_for_a_lossy_one() -> None:
    events = [*ranges(), launch(1, 20), launch(2, 40), of_launch(71, 20, 0, 5), of_launch(72, 40, 10, 15)]
    assert [timing.kernels for timing in attribute(events, NAMES)] == [1, 1]


def chain(*begun: int) -> list[Event]:
    """One call with a launch each of which the host began at these times, run from 100 to 110, 200 to 210 and so on; and a second call."""
    launches = [Event("cuLaunchKernelEx", number=900 + place, tag=20, start=at, end=at + 5) for place, at in enumerate(begun)]
    run = [of_launch(900 + place, 20, 100 * (place + 1), 100 * (place + 1) + 10) for place in range(len(begun))]
    return [*ranges(), *launches, *run, activity(40, 900, 910)]


@pytest.mark.parametrize(
    ("begun", "late"),
    [((10, 20, 30), False), ((10, 20, 250), True), ((10, 150, 160), True), ((10, 105, 205), False), ((95, 96, 97), False), ((10,), False)],
    ids=["ahead", "late for the third", "late for the second", "while the one before ran", "late for the first alone", "one launch"],
)
def test_a_call_that_kept_the_device_waiting_for_the_host_is_late(begun: tuple[int, ...], late: bool) -> None:
    found = attribute(chain(*begun), NAMES)
    assert [timing.late for timing in found] == [late, False]
    assert found[0].kernels == len(begun)


def test_a_copy_that_the_host_came_late_with_is_seen_too_and_its_record_is_not_asked_for() -> None:
    events = [*ranges(), launch(901, 20), of_launch(901, 20, 100, 110), Event("cudaMemcpyAsync", number=902, tag=20, start=300, end=301)]
    events += [
        of_launch(902, 20, 310, 320),
        launch(904, 40),
        of_launch(904, 40, 900, 910),
        Event("cudaStreamSynchronize", number=905, tag=50),
    ]
    assert attribute(events, NAMES) == [CallTiming(220, 20, 2, late=True), CallTiming(10, 10, 1)]


def test_an_activity_beside_an_earlier_one_on_another_stream_waits_for_nobody() -> None:
    events = [*ranges(), Event("cudaLaunchKernel", number=901, tag=20, start=5, end=6), of_launch(901, 20, 100, 400)]
    events += [Event("cudaLaunchKernel", number=902, tag=20, start=150, end=151), of_launch(902, 20, 160, 200), activity(40, 900, 910)]
    assert not attribute(events, NAMES)[0].late


def test_where_launches_are_not_matched_nothing_is_known_of_the_host() -> None:
    events = [*ranges(), launch(1, 20), launch(2, 20), of_launch(71, 20, 0, 5), of_launch(72, 20, 50, 55), activity(40, 900, 910)]
    assert not attribute(events, NAMES)[0].late


def test_the_gap_is_what_the_span_holds_besides_activities() -> None:
    events = [*ranges(), activity(20, 100, 110), activity(20, 150, 160), activity(40, 300, 390)]
    assert [timing.span_ns - timing.busy_ns for timing in attribute(events, NAMES)] == [40, 0]


def threaded(launched_ns: int) -> list[Event]:
    """Two calls that begin at 100 and 300 and return at 200 and 400, and a kernel that another thread launched at `launched_ns`."""
    events = ranges()
    for event, start in zip(events, (0, 100, 200, 300, 400), strict=True):
        event.start = start
    launch = Event("cudaLaunchKernel", number=7, start=launched_ns)
    stray = Event("stray", device="DeviceType.CUDA", number=7, start=500, end=600)
    return [*events, activity(20, 110, 150), activity(40, 310, 390), launch, stray]


def test_work_that_another_thread_launches_within_a_call_counts_into_its_span() -> None:
    assert attribute(threaded(150), NAMES) == [CallTiming(490, 140, 2), CallTiming(80, 80, 1)]


def test_work_that_is_launched_after_the_return_counts_into_the_call_and_is_told() -> None:
    assert attribute(threaded(250), NAMES) == [CallTiming(490, 140, 2, late=True, outside=1), CallTiming(80, 80, 1)]
    assert attribute(threaded(450), NAMES)[1] == CallTiming(290, 180, 2, late=True, outside=1)


@pytest.mark.parametrize("launched_ns", [-5, 50])
def test_work_from_before_the_first_call_belongs_to_none(launched_ns: int) -> None:
    with pytest.raises(TimerError, match="carries no correlation to any call"):
        attribute(threaded(launched_ns), NAMES)


def test_work_on_a_side_stream_that_the_call_never_joins_counts_into_its_span() -> None:
    """The launch carries the call's tag, wherever and whenever the device runs it."""
    events = [*ranges(), activity(20, 100, 150), activity(20, 800, 950, "on a side stream"), activity(40, 300, 390)]
    assert attribute(events, NAMES)[0] == CallTiming(span_ns=850, busy_ns=200, kernels=2)
