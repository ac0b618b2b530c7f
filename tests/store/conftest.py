"""Tables of records are compressed here, as users get them."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def as_users_get_them(compressed_tables: None) -> None:
    """Readers are tested on what the product writes."""
