"""Smaller estimators for the tests of `aim`, whose data are simple, on one thread."""

import os
from collections.abc import Iterator

import pytest
import sklearn.ensemble  # noqa: F401  # only what is loaded is limited
from threadpoolctl import threadpool_limits

from tests import smaller


@pytest.fixture(autouse=True, scope="module")
def fewer_trees() -> Iterator[None]:
    """Trees take most of the time; test-full fits as many as users do."""
    with pytest.MonkeyPatch.context() as patch, threadpool_limits(1):
        if os.environ.get("ASTKIT_FULL") != "1":
            smaller.trees(patch)
        yield
