from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from matplotlib.figure import Figure

from fusebench.report.pages import write_views
from fusebench.report.plots.palette import colour_of, marker_of
from fusebench.report.plots.speedup import _by_effect, _kernels, run_pictures, speedup_png
from fusebench.schema import Estimate, Run, Status


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


def test_the_title_of_a_narrow_picture_fits_it(synthetic: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run of which some cases were measured in several processes, on which there is the most to say."""
    widths: list[float] = []
    save = Figure.savefig

    def kept(figure: Any, *to: Any, **options: Any) -> None:
        save(figure, *to, **options)
        widths.append(figure._suptitle.get_window_extent().width / (options["dpi"] * figure.get_figwidth()))

    monkeypatch.setattr(Figure, "savefig", kept)
    run = synthetic.make_run(cases=("flux_1024",), kernels=[synthetic.BASELINE, synthetic.FUSED])
    first, *others = run.results
    several = msgspec.structs.replace(first, measurement=msgspec.structs.replace(first.measurement, processes=8))
    speedup_png(msgspec.structs.replace(run, results=[several, *others]))
    assert 0.5 < widths[0] < 1.0


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
    assert _kernels(measured) == _kernels(run.results)


def test_a_kernel_has_one_colour_everywhere_and_no_two_of_an_op_share_colour_and_marker(synthetic: ModuleType) -> None:
    roles = _kernels(synthetic.make_run(cases=("flux_1024",)).results)
    marks = {(colour_of(kernel, role), marker_of(role)) for kernel, role in roles.items()}
    assert len(marks) == len(roles)
    for kernel, role in roles.items():
        assert colour_of(kernel, role) == colour_of(f"another_op/{kernel}", role), "it depends on the name alone, not on what is beside it"


def test_cases_are_sorted_by_effect(synthetic: ModuleType) -> None:
    slow = {("flux_1024", kernel): 2.0 for kernel in synthetic.KERNELS if "fused" in kernel}
    order = _by_effect(synthetic.make_run(cases=("flux_1024", "zimage_1024"), slow=slow).results)
    assert order == ["qknorm_rope:zimage_1024", "qknorm_rope:flux_1024"]


@pytest.mark.parametrize("count", [5, 150])
def test_labels_are_legible_from_5_to_150_cases(synthetic: ModuleType, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """No label of a case overlaps its neighbour, and none leaves the picture."""
    found: list[tuple[float, float, float]] = []
    save = Figure.savefig

    def kept(figure: Any, *to: Any, **options: Any) -> None:
        save(figure, *to, **options)
        found.extend((box.x0, box.y0, box.y1) for label in figure.axes[0].get_yticklabels() if (box := label.get_window_extent()))

    monkeypatch.setattr(Figure, "savefig", kept)
    kernels = [synthetic.BASELINE, synthetic.FUSED]
    speedup_png(synthetic.make_run(cases=[f"a_case_of_some_length_{index}" for index in range(count)], kernels=kernels))
    assert len(found) == count
    assert min(left for left, _, _ in found) >= 0
    edges = sorted((low, high) for _, low, high in found)
    assert all(above[0] > below[1] for below, above in pairwise(edges))


def test_every_picture_is_written_as_png_and_as_svg_with_a_title(synthetic: ModuleType) -> None:
    hostile = synthetic.make_run(cases=("flux_1024",), environment={"device_name": "H200 $\\frac{ <b>\x1b[2J"})
    pictures = run_pictures(hostile)
    assert sorted(pictures) == ["roofline.png", "roofline.svg", "speedup.png", "speedup.svg"]
    for name, content in pictures.items():
        assert content.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")
        assert b"\x1b[2J" not in content
        assert name.endswith("png") or b"<b>" not in content
    assert run_pictures(hostile) == pictures, "the same run gives the same bytes"
