"""The site of the guides holds every page, and builds without a broken link."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[1]
CONFIG = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())


def pages(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for entry in (nav.values() if isinstance(nav, dict) else nav) for page in pages(entry)]  # type: ignore[attr-defined]


def test_every_guide_has_one_place_in_the_navigation() -> None:
    listed = pages(CONFIG["nav"])
    of_results = {"results/README.md", "results/steps/README.md", "results/random/nvidia_h200.md"}
    assert sorted(listed) == sorted({page.name for page in (REPOSITORY / "docs").glob("*.md")} | of_results)
    assert listed[0] == "README.md"
    assert CONFIG["strict"] is True


def test_a_guide_without_mkdocs_is_found_by_its_own_table() -> None:
    """docs/README.md lists the same guides, for readers of the repository."""
    linked = set(re.findall(r"\]\((\w+\.md)\)", (REPOSITORY / "docs" / "README.md").read_text()))
    assert {page for page in pages(CONFIG["nav"]) if "/" not in page} - linked == {"README.md"}


def test_the_site_builds_without_a_broken_link_and_needs_no_network(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed: `make docs` installs it, and CI builds the site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(
        command, cwd=REPOSITORY, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "site" / "ci" / "index.html").read_text()
    assert "Set up CI" in page
    assert not re.findall(r"<(?:script|link)[^>]+(?:src|href)=\"https?://(?!github\.com)", page.replace('rel="canonical"', ""))
    assert not (tmp_path / "site" / "_site").exists()
