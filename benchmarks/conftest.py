"""The benches' own tests follow the switches of the suite, see tests/conftest.py."""

from tests.conftest import (
    no_waiting_for_the_disk,
    pytest_collection_modifyitems,
    pytest_make_collect_report,
    pytest_runtest_makereport,
)

__all__ = [
    "no_waiting_for_the_disk",
    "pytest_collection_modifyitems",
    "pytest_make_collect_report",
    "pytest_runtest_makereport",
]
