"""Code whose inputs are known is not compiled again, but for a sample; whatever changed is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from fusebench.evidence.records import Code, StaticReport
from fusebench.evidence.static_process import Progress
from fusebench.store.static_baselines import codes_of_baseline, encode_static, promote_static, read_static

Evidence = Callable[..., StaticReport]


def codes(report: StaticReport) -> dict[str, Code]:
    return {launch.inputs: launch.code for one in report.results for launch in one.launches}


def marked(report: StaticReport) -> dict[str, Code]:
    """Its codes, each with a figure that no compiler gives: what is taken on trust has it, and what is compiled has not."""
    return {key: msgspec.structs.replace(code, stack=code.stack + 12345) for key, code in codes(report).items()}


def test_one_specialisation_of_each_function_is_compiled_and_the_others_are_taken_on_trust(
    spoiled: StaticReport, evidence: Evidence, spoiled_project: Path
) -> None:
    told: list[Progress] = []
    found = codes(evidence(spoiled_project, trusted=marked(spoiled), on_progress=told.append))
    assert found.keys() == codes(spoiled).keys(), "the same inputs in another folder and process have the same digests"
    compiled = {key for key, code in found.items() if code == codes(spoiled)[key]}
    trusted = {key for key, code in found.items() if code == marked(spoiled)[key]}
    assert (compiled | trusted, bool(trusted)) == (set(found), True)
    assert sorted(found[key].entry for key in compiled) == sorted({code.entry for code in found.values()})
    assert {one.total for one in told if one.text == "compile"} == {len(compiled)}


def test_changed_code_is_compiled(sound: StaticReport, spoiled: StaticReport, evidence: Evidence, spoiled_project: Path) -> None:
    found = codes(evidence(spoiled_project, trusted=marked(sound)))
    changed = found.keys() - codes(sound).keys()
    assert changed
    assert {key: found[key] for key in changed} == {key: codes(spoiled)[key] for key in changed}


def test_a_baseline_gives_the_codes_it_holds_and_one_without_digests_none(sound: StaticReport, tmp_path: Path) -> None:
    assert codes_of_baseline(tmp_path, "sm_90") == {}
    file = promote_static(sound, tmp_path)
    assert codes_of_baseline(tmp_path, "sm_90") == codes(sound)
    without = [
        msgspec.structs.replace(one, launches=tuple(msgspec.structs.replace(launch, inputs="") for launch in one.launches))
        for one in read_static(file).results
    ]
    file.write_bytes(encode_static(msgspec.structs.replace(sound, results=tuple(without))))
    assert codes_of_baseline(tmp_path, "sm_90") == {}
