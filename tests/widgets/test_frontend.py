"""Who is watching: told apart by the environment, the kernel and what its requests carry."""

from __future__ import annotations

import pytest

from astkit.widgets import frontend


class Kernel:
    def __init__(self, metadata):
        self.metadata = metadata

    def get_parent(self, channel):
        assert channel == "shell"
        return {"header": {}, "metadata": self.metadata}


@pytest.fixture
def within(monkeypatch):
    monkeypatch.delenv("ASTKIT_LIVE", raising=False)
    monkeypatch.delenv("KAGGLE_KERNEL_RUN_TYPE", raising=False)

    def set_up(kernel, **environment):
        monkeypatch.setattr(frontend, "kernel", lambda: kernel)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return set_up


LAB, BARE = Kernel({"cellId": "a", "recordTiming": False}), Kernel({})


@pytest.mark.parametrize(
    ("kernel", "live", "environment", "expected"),
    [
        (None, None, {}, "off"),
        (None, True, {"ASTKIT_LIVE": "1"}, "off"),
        (LAB, None, {}, "ask"),
        (LAB, False, {}, "off"),
        (LAB, None, {"ASTKIT_LIVE": "0"}, "off"),
        (LAB, True, {"ASTKIT_LIVE": "0"}, "off"),
        (LAB, False, {"ASTKIT_LIVE": "1"}, "ask"),
        (LAB, None, {"KAGGLE_KERNEL_RUN_TYPE": "Batch"}, "headless"),
        (LAB, None, {"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}, "ask"),
        (BARE, None, {}, "headless"),
        (BARE, True, {}, "ask"),
        (BARE, False, {}, "off"),
        (BARE, None, {"ASTKIT_LIVE": "1"}, "ask"),
        (object(), None, {}, "ask"),
    ],
)
def test_modes(within, kernel, live, environment, expected):
    within(kernel, **environment)
    assert frontend.mode(live) == expected


def test_another_value_of_the_switch_is_refused(within):
    within(LAB, ASTKIT_LIVE="yes")
    with pytest.raises(ValueError, match="ASTKIT_LIVE is 'yes': set it to 0 or 1"):
        frontend.mode()


def test_a_script_has_no_kernel():
    assert frontend.kernel() is None
