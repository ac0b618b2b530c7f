from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fusebench.report.plots.palette import colour_of, marker_of
from fusebench.report.plots.parts import kernels_of
from fusebench.report.plots.speedup import _by_effect, _speedups, run_pictures, speedup_png
from fusebench.report.plots.versions import versions_figure
from fusebench.report.run.pages import write_views
from fusebench.report.versions import version_steps
from fusebench.schema import Estimate, Role, Run, Status


def drawn(figure: Figure) -> Figure:
    FigureCanvasAgg(figure).draw()
    return figure


def dimensions(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@pytest.mark.parametrize("count", [1, 8, 9, 40])
def test_the_picture_grows_with_the_cases_but_stays_printable(synthetic: ModuleType, count: int) -> None:
    kernels = [synthetic.BASELINE, synthetic.FUSED]
    width, height = dimensions(speedup_png(synthetic.make_run(cases=[f"case_{index}" for index in range(count)], kernels=kernels)))
    assert 900 <= width <= 2000
    assert 600 <= height <= 2500


def test_the_title_of_a_narrow_picture_fits_it(synthetic: ModuleType) -> None:
    """Of a run of which some cases were measured in several processes, on which there is the most to say."""
    run = synthetic.make_run(cases=("flux_1024",), kernels=[synthetic.BASELINE, synthetic.FUSED])
    first, *others = run.results
    several = msgspec.structs.replace(first, measurement=msgspec.structs.replace(first.measurement, processes=8))
    figure = drawn(_speedups(msgspec.structs.replace(run, results=[several, *others])))
    title = next(one for one in figure.texts if "replicate" in one.get_text())
    assert 0.5 < title.get_window_extent().width / figure.bbox.width < 1.0


def test_the_same_run_gives_the_same_picture_and_another_gives_another(synthetic: ModuleType) -> None:
    small = {"cases": ("flux_1024",), "kernels": [synthetic.BASELINE, synthetic.FUSED]}
    first = speedup_png(synthetic.make_run(**small))
    assert speedup_png(synthetic.make_run(**small)) == first
    assert speedup_png(synthetic.make_run(slow={("flux_1024", synthetic.FUSED): 1.3}, **small)) != first


def test_unbounded_intervals_and_missing_copies_are_drawable(synthetic: ModuleType) -> None:
    run: Run = synthetic.make_run(cases=("flux_1024",), copy=False)
    unbounded = Estimate(2.0, 0.0, float("inf"))
    results = [
        msgspec.structs.replace(result, measurement=msgspec.structs.replace(result.measurement, time_us=unbounded, speedup=unbounded))
        for result in run.results
    ]
    dimensions(speedup_png(msgspec.structs.replace(run, results=results)))


def test_a_run_without_measurements_gives_a_picture_that_says_so(synthetic: ModuleType) -> None:
    checked = {("flux_1024", kernel): (Status.CHECKED, "") for kernel in synthetic.KERNELS}
    dimensions(speedup_png(synthetic.make_run(cases=("flux_1024",), status=checked)))


def test_views_lie_beside_the_record_and_can_be_made_again(tmp_path: Path, synthetic: ModuleType) -> None:
    run = synthetic.make_run(cases=("flux_1024",))
    for _ in range(2):
        paths = write_views(run, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.md", "speedup.png"]
    assert "(speedup.png)" in paths[0].read_text()


def test_kernels_of_one_name_share_a_colour_over_the_ops_of_a_suite(synthetic: ModuleType) -> None:
    """A model's suite has several ops with a fused_triton@2 each: one entry of the legend, not four of the same name."""
    run = synthetic.make_run(cases=("flux_1024",))
    other = [
        msgspec.structs.replace(result, op="norm", kernel=result.kernel.replace("qknorm_rope/", "norm/"), case="norm")
        for result in run.results
    ]
    measured = [*run.results, *other]
    assert kernels_of(measured) == kernels_of(run.results)


def test_a_kernel_has_one_colour_everywhere_and_no_two_of_an_op_share_colour_and_marker(synthetic: ModuleType) -> None:
    roles = kernels_of(synthetic.make_run(cases=("flux_1024",)).results)
    marks = {(colour_of(kernel, role), marker_of(role)) for kernel, role in roles.items()}
    assert len(marks) == len(roles)
    for kernel, role in roles.items():
        assert colour_of(kernel, role) == colour_of(f"another_op/{kernel}", role), "it depends on the name alone, not on what is beside it"


def test_cases_are_sorted_by_effect(synthetic: ModuleType) -> None:
    slow = {("flux_1024", kernel): 2.0 for kernel in synthetic.KERNELS if "fused" in kernel}
    order = _by_effect(synthetic.make_run(cases=("flux_1024", "zimage_1024"), slow=slow).results)
    assert order == ["qknorm_rope:zimage_1024", "qknorm_rope:flux_1024"]


def require_legible(figure: Figure, cases: int) -> None:
    """No label of a case overlaps its neighbour, and none leaves the picture."""
    found = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert len(found) == cases
    assert min(box.x0 for box in found) >= 0
    edges = sorted((box.y0, box.y1) for box in found)
    assert all(above[0] > below[1] for below, above in pairwise(edges))


@pytest.mark.parametrize("count", [5, 150])
def test_labels_are_legible_from_5_to_150_cases(synthetic: ModuleType, count: int) -> None:
    kernels = [synthetic.BASELINE, f"{synthetic.OP}/fused_triton@1", synthetic.FUSED]
    run = synthetic.make_run(cases=[f"a_case_of_some_length_{index}" for index in range(count)], kernels=kernels)
    require_legible(drawn(_speedups(run)), count)
    require_legible(drawn(versions_figure(run, version_steps(run))), count)


def test_versions_are_compared_with_the_one_before_largest_effect_first(synthetic: ModuleType) -> None:
    slow = {("zimage_1024", synthetic.FUSED): 1.5}
    run = synthetic.make_run(cases=("zimage_1024", "flux_1024"), slow=slow)
    steps = version_steps(run)
    assert [(step.newer.case, step.label) for step in steps] == [
        ("flux_1024", "fused_triton@2 over @1"),
        ("zimage_1024", "fused_triton@2 over @1"),
    ]
    faster, slower = (step.speedup for step in steps)
    assert faster.value == pytest.approx(1.25 / 1.08)
    assert slower.high < 1.0 < faster.low, "the slower version is told apart"
    figure = versions_figure(run, steps)
    marked = {line.get_color() for line in figure.axes[0].lines if line.get_marker() == "o"}
    assert marked == {colour_of(synthetic.FUSED, Role.FUSED)}, "the colour of the newer version, as everywhere"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["fused_triton@1", "fused_triton@2"]


def test_versions_that_have_no_neighbour_make_no_picture(synthetic: ModuleType) -> None:
    """One version, a version without a time, and a version that covers a part of the op."""
    one = synthetic.make_run(cases=("flux_1024",), kernels=[synthetic.BASELINE, synthetic.FUSED])
    untimed = {("flux_1024", f"{synthetic.OP}/fused_triton@1"): (Status.CRASHED, "boom")}
    two = synthetic.make_run(cases=("flux_1024",))
    parts = [msgspec.structs.replace(result, covers="norm only" if "fused" in result.kernel else "") for result in two.results]
    for run in (one, synthetic.make_run(cases=("flux_1024",), status=untimed), msgspec.structs.replace(two, results=parts)):
        assert version_steps(run) == []


def test_every_picture_is_written_as_png_and_as_svg_with_a_title(synthetic: ModuleType) -> None:
    hostile = synthetic.make_run(cases=("flux_1024",), environment={"device_name": "H200 $\\frac{ <b>\x1b[2J"})
    pictures = run_pictures(hostile)
    assert sorted(pictures) == [f"{name}.{form}" for name in ("roofline", "speedup", "versions") for form in ("png", "svg")]
    for name, content in pictures.items():
        assert content.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")
        assert b"\x1b[2J" not in content
        assert name.endswith("png") or b"<b>" not in content
    assert run_pictures(hostile) == pictures, "the same run gives the same bytes"
