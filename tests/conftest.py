"""Two switches for the whole suite, both read from the environment.

ASTKIT_FULL=1              also runs the tests marked ``full``.
ASTKIT_FORBID_SKIPS=a,b    a skip whose reason contains ``a`` or ``b`` (in any case) is a failure.
"""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import hypothesis
import pytest
import tqdm.std

HERE = Path(__file__).parent
LONGEST = (
    "notebooks/test_runs.py",
    "runs/test_export_runs.py",
    "browser/test_steering.py",
    "tests/test_readme.py",
    "widgets/test_dashboard.py",
)

# jsonschema, which nbformat imports, spends a second on this grammar of addresses, if it is there
sys.modules.setdefault("rfc3987_syntax", None)

# on a busy machine an example may take longer than hypothesis allows; test-full draws new ones
hypothesis.settings.register_profile("same examples", deadline=None, derandomize=True)
hypothesis.settings.register_profile("new examples", deadline=None)
hypothesis.settings.load_profile(
    "new examples" if os.environ.get("ASTKIT_FULL") == "1" else "same examples"
)

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def pytest_sessionstart() -> None:
    # a shell's "&" and nohup start what they start with these ignored, and children inherit that
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    for number, handler in usual.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # the longest modules first: at the end one process would wait for another
    items.sort(key=lambda item: not str(item.path).endswith(LONGEST))
    if os.environ.get("ASTKIT_FULL") == "1":
        return
    for item in items:
        if any(item.iter_markers("full")) or any(item.iter_markers("alone")):
            item.add_marker(pytest.mark.skip(reason="acceptance count: make test-full runs it"))


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint waits three times for it; what is written is read back all the same."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Terminal]:
    """Call it in a test: standard error is then a terminal, which shows bars."""

    def set_stderr() -> Terminal:
        shown = Terminal()
        monkeypatch.setattr(sys, "stderr", shown)  # pytest sets its own after the fixtures
        return shown

    return set_stderr


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of bars, which stands still: ``clock.now``."""
    made = SimpleNamespace(now=0.0)
    monkeypatch.setattr(tqdm.std, "time", lambda: made.now)
    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _forbid_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _forbid_skip((yield))  # a module that skips itself never reaches makereport


def _forbid_skip(report: Report) -> Report:
    # pytest keeps a skip's reason as (file, line, reason); an expected failure has no such triple
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        words = os.environ.get("ASTKIT_FORBID_SKIPS", "").lower().split(",")
        if any(word and word in reason.lower() for word in words):
            report.outcome = "failed"
            report.longrepr = f"ASTKIT_FORBID_SKIPS forbids this skip: {reason}"
    return report


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A disk of the size that the test's parameter says, such as "64k"."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)
