"""Every guide is short, wrapped, linked and in the project's words; so are the names and texts of the source.

The checks read Markdown and source files alone. `test_documentation.py` runs the guides' commands and checks their figures.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
WIDTH = 120
README_WORDS = 900
RETIRED = (
    r"crews?",
    r"contenders?",
    r"doubts?",
    r"second looks?",
    r"(?:has|have|had|no|a) say",
    r"twins?",
    r"couples?",
    r"households?",
    r"undisturbed",
    r"planted slowdowns?",
    r"plantings?",
    r"truths",
    r"two sides",
    r"(?:this|other) side",
    r"whole_run",
    r"selected_part",
    r"soundness",
    r"held_to_\w+",
    r"equal kernels",
    r"the streams?",
    r"ledgers?",
)
"""Words of the project's past, each with one successor in the field's language."""
RETIRED_NAMES = (*RETIRED, r"sound", r"standing", r"ending", r"decides", r"measure_again")
"""Retired in names of the source; some of these are ordinary words of prose."""
STORED_KEYS = {"decides", "in_doubt", "largest_planted", "planting", "standing", "truths", "twins"}
"""Keys of records and of `--json` that keep their old name; Python names are in the field's words."""
SOURCES = [*sorted((REPOSITORY / "harness" / "fusebench").rglob("*.py")), *sorted((REPOSITORY / "kernels").rglob("*.py"))]


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Line numbers and lines outside of code blocks, tables, and rows quoted from stored reports (between `<!-- … -->` marks)."""
    fenced = quoted = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif line.startswith("<!--"):
            quoted = not line.startswith("<!-- end")
        elif not (fenced or quoted or line.startswith("|")):
            yield number, line


def too_wide(text: str) -> list[int]:
    """Lines of prose over 120 columns; a line that is one link, as pictures are, cannot be broken."""
    return [number for number, line in prose(text) if len(line) > WIDTH and not re.fullmatch(r"!?\[[^]]*\]\([^)]*\)", line)]


def retired_words(text: str) -> list[str]:
    """Retired words in prose and tables; names in backticks are code or stored keys."""
    quoted = re.sub(r"<!-- .*? -->.*?<!-- end.*?-->", "", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), flags=re.DOTALL)
    flat = " ".join(re.sub(r"`[^`]*`|\]\([^)]*\)", " ", quoted).split())
    return re.findall(rf"\b(?:{'|'.join(RETIRED)})\b", flat, re.IGNORECASE)


def retired_in_source(text: str) -> list[str]:
    """Retired words in the names and the text literals of Python source, docstrings included; a literal that is a stored key may stay."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in STORED_KEYS:
            found += _retired(" ".join(node.value.split()), RETIRED)
        for name in (getattr(node, part, None) for part in ("name", "id", "attr", "arg", "asname", "module")):
            if isinstance(name, str):
                words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
                found += _retired(words, RETIRED_NAMES) or _retired(re.sub(r"[_.]", " ", words), RETIRED_NAMES)
    return found


def _retired(text: str, words: tuple[str, ...]) -> list[str]:
    return re.findall(rf"\b(?:{'|'.join(words)})\b", re.sub(r"ground.truths?", "", text, flags=re.IGNORECASE), re.IGNORECASE)


def missing_paths(text: str) -> list[str]:
    """Paths of this repository, written in backticks, that do not exist. `…`, `*` and `<name>` stand for any name; runs are made later."""
    named = re.findall(r"`(?:python )?((?:harness|kernels|suites|tests|docs|results|ci)/[^`\s]*)`", text)
    return [path for path in named if not path.startswith("results/runs/") and not any(REPOSITORY.glob(re.sub(r"<\w+>|…", "*", path)))]


def anchors(text: str) -> set[str]:
    """The anchors that a renderer gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path, text: str) -> list[str]:
    """Relative links of `page` whose file or heading does not exist."""
    missing = []
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)):
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(text if file == page else file.read_text())):
            missing.append(target)
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_wraps_at_120_columns(page: Path) -> None:
    assert too_wide(page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_uses_no_retired_word(page: Path) -> None:
    assert retired_words(page.read_text()) == []


def test_the_source_uses_no_retired_word() -> None:
    found = {str(file.relative_to(REPOSITORY)): retired_in_source(file.read_text()) for file in SOURCES}
    assert {file: words for file, words in found.items() if words} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken_links(page, page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    assert missing_paths(page.read_text()) == []


def test_the_readme_is_read_in_the_first_minutes() -> None:
    assert len((REPOSITORY / "README.md").read_text().split()) < README_WORDS


def test_the_index_names_every_guide() -> None:
    index = (REPOSITORY / "docs" / "README.md").read_text()
    listed = re.findall(r"^\| \[[^]]*\]\(([\w.]+)\)", index, re.MULTILINE)
    assert sorted(listed) == sorted(page.name for page in PAGES if page.parent == REPOSITORY / "docs" and page.name != "README.md")


@pytest.mark.parametrize(
    ("check", "planted"),
    [
        (too_wide, "a word " * 20),
        (retired_words, "A case in\ndoubt is measured again."),
        (retired_words, "| peers | have no say |"),
        (retired_words, "The plantings of a pilot, and `plantings`."),
        (retired_in_source, "class Crew: ..."),
        (retired_in_source, "def second_look(case): ..."),
        (retired_in_source, "run.has_a_say = True"),
        (retired_in_source, "def require(*, held_to_rate): ..."),
        (retired_in_source, "kernel.decides"),
        (retired_in_source, "'Measure the cases in doubt again.'"),
        (retired_in_source, "print(f'{name}: compared with the other side')"),
        (missing_paths, "See `tests/verdict/test_gone.py` and `tests/test_guides.py`."),
        (lambda text: broken_links(REPOSITORY / "README.md", text), "[gone](docs/gone.md)"),
        (lambda text: broken_links(REPOSITORY / "README.md", text), "[gone](docs/gate.md#no-such-heading)"),
        (lambda text: broken_links(REPOSITORY / "README.md", text), "# Here\n\n[gone](#there)"),
    ],
)
def test_a_planted_defect_is_found(check: Callable[[str], list[object]], planted: str) -> None:
    assert len(check(planted)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "| " + "a cell " * 20 + "|",
        "```\n" + "code " * 40 + "\n```",
        "<!-- from: a -->\n" + "row " * 40 + "\n<!-- end -->",
        "`in doubt`",
        "[h](#h)\n\n## H",
    ],
)
def test_tables_code_quotations_and_keys_are_left_alone(text: str) -> None:
    assert too_wide(text) == []
    assert retired_words(text) == []
    assert broken_links(REPOSITORY / "README.md", text) == []


@pytest.mark.parametrize(
    "text", ["gating = field(name='decides')", "self.spending, pending, ground_truths = 0, 1, 2", "'The ground truth decides.'"]
)
def test_stored_keys_and_ordinary_words_of_the_source_are_left_alone(text: str) -> None:
    assert retired_in_source(text) == []
