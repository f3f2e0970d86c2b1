"""Who is watching: told apart by the environment, the kernel and what its requests carry."""

from types import SimpleNamespace

from astkit.widgets import frontend

LAB, BARE = (
    SimpleNamespace(get_parent={"shell": {"header": {}, "metadata": each}}.get)
    for each in ({"cellId": "a", "recordTiming": False}, {})
)


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
