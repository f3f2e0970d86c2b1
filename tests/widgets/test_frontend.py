"""Who is watching: told apart by the environment, the kernel and what its requests carry."""

from astkit.widgets import frontend


class Kernel:
    def __init__(self, metadata):
        self.metadata = metadata

    def get_parent(self, channel):
        assert channel == "shell"
        return {"header": {}, "metadata": self.metadata}


LAB, BARE = Kernel({"cellId": "a", "recordTiming": False}), Kernel({})


def test_modes(monkeypatch):
    for kernel, live, expected in (
        (None, None, "off"),
        (None, True, "off"),
        (LAB, None, "ask"),
        (LAB, False, "off"),
        (BARE, None, "headless"),
        (BARE, True, "ask"),
        (BARE, False, "off"),
        (object(), None, "ask"),
    ):
        monkeypatch.setattr(frontend, "kernel", lambda kernel=kernel: kernel)
        assert frontend.mode(live) == expected, (kernel, live)
