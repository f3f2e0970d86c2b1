"""Smaller estimators for the tests of `aim`, whose data are simple."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests import smaller


@pytest.fixture(autouse=True, scope="module")
def fewer_trees() -> Iterator[None]:
    """Trees take most of the time; test-full fits as many as users do."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("ASTKIT_FULL") != "1":
            smaller.trees(patch)
        yield
