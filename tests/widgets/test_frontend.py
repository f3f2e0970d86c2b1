"""Who is watching: told apart by the environment, the kernel and what its requests carry."""

import pytest

from astkit.widgets import frontend


class Kernel:
    def __init__(self, metadata):
        self.metadata = metadata

    def get_parent(self, channel):
        assert channel == "shell"
        return {"header": {}, "metadata": self.metadata}


LAB, BARE = Kernel({"cellId": "a", "recordTiming": False}), Kernel({})


def test_modes(monkeypatch):
    for kernel, live, environment, expected in (
        (None, None, {}, "off"),
        (None, True, {"ASTKIT_LIVE": "1"}, "off"),
        (LAB, None, {}, "ask"),
        (LAB, False, {}, "off"),
        (LAB, None, {"ASTKIT_LIVE": "0"}, "off"),
        (LAB, True, {"ASTKIT_LIVE": "0"}, "off"),
        (LAB, False, {"ASTKIT_LIVE": "1"}, "ask"),
        (BARE, None, {}, "headless"),
        (BARE, True, {}, "ask"),
        (BARE, False, {}, "off"),
        (BARE, None, {"ASTKIT_LIVE": "1"}, "ask"),
        (object(), None, {}, "ask"),
    ):
        monkeypatch.setattr(frontend, "kernel", lambda kernel=kernel: kernel)
        monkeypatch.setenv("ASTKIT_LIVE", environment.get("ASTKIT_LIVE", ""))
        assert frontend.mode(live) == expected, (kernel, live, environment)
    monkeypatch.setenv("ASTKIT_LIVE", "yes")
    with pytest.raises(ValueError, match="ASTKIT_LIVE is 'yes': set it to 0 or 1"):
        frontend.mode()
