"""Pages that are fitted to a number of characters: every section has shorter versions, and the least important one is shortened first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

Lines = list[str]


class Section(msgspec.Struct):
    """Versions of one section, the fullest first; `rank` says how late it is shortened."""

    rank: int
    versions: Sequence[Callable[[], Lines]]
    chosen: int = 0

    @property
    def last(self) -> bool:
        return self.chosen == len(self.versions) - 1


def fixed(lines: Lines) -> Section:
    """A section that is never shortened."""
    return Section(99, [lambda: lines])


def fitted(sections: Sequence[Section], limit: int, *, shortened: str = "", cut: str) -> str:
    """The sections as one text of at most `limit` characters.

    Args:
        shortened: the sentence that ends a page with a shortened section.
        cut: the sentence that ends a page which is too long even where every section is at its shortest.
    """
    while len(page := _page(sections, shortened)) > limit:
        open_ones = [section for section in sections if not section.last]
        if not open_ones:
            return page[: limit - len(cut) - 3].rsplit("\n", 1)[0] + f"\n\n{cut}\n"
        min(open_ones, key=lambda section: section.rank).chosen += 1
    return page


def folded(title: str, lines: Lines) -> Lines:
    """`lines` under a title that a click opens."""
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "", "</details>"]


def _page(sections: Sequence[Section], shortened: str) -> str:
    blocks = ["\n".join(lines).strip("\n") for section in sections if (lines := section.versions[section.chosen]())]
    if shortened and any(section.chosen for section in sections):
        blocks.append(shortened)
    return "\n\n".join(blocks) + "\n"
