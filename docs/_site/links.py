"""mkdocs hook: links from a guide to a file outside of docs/ lead to the repository."""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """`](../results/x)` of a page in docs/ becomes a link to the repository's main branch; deeper pages keep their own `../`."""
    if "/" in page.file.src_uri:
        return markdown
    return re.sub(r"\]\(\.\./([^)\s]+)\)", rf"]({config.repo_url.rstrip('/')}/blob/main/\1)", markdown)
