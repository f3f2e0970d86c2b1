"""A GPU that this torch cannot use is found out and hidden; devices here are made up."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from astkit.export import gpu


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that torch reports, and that no driver backs."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Tesla P100")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")


def test_a_device_that_fails_at_work_fails_the_trial(device, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: no kernel image is available\nmore")

    monkeypatch.setattr(torch, "ones", fail)
    assert gpu.trial() == (
        f"torch {torch.__version__} cannot compute on Tesla P100"
        " (CUDA error: no kernel image is available)"
    )


def test_a_wrong_result_fails_the_trial(device, monkeypatch) -> None:
    monkeypatch.setattr(torch, "ones", lambda *_, **__: torch.zeros(64, 64, device="cpu"))
    assert gpu.trial() == "Tesla P100 computes a wrong matrix product"


class Pool:
    """Stands in for a process pool: the trial is answered from here."""

    def __init__(self, answer: str | Exception | None) -> None:
        self.answer = answer

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None: ...

    def Pool(self, _: int) -> Pool:  # noqa: N802 - as in multiprocessing
        return self

    def apply_async(self, _: object) -> Pool:
        return self

    def get(self, _: float) -> str | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "said", "visible"),
    [
        (None, "CUDA works: 1 device(s)", "0"),
        ("no kernels", "no kernels: CUDA is hidden, and this runs on the CPU (a T4 would do)", ""),
        (gpu.TimeoutError(), "a trial of the GPU did not end within 5 s: CUDA is hidden", ""),
    ],
)
def test_what_fails_is_hidden(answer, said, visible, device, monkeypatch) -> None:
    monkeypatch.setattr(gpu, "get_context", lambda method: Pool(answer))
    assert gpu.hide_unusable(5).startswith(said)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible


def test_it_stops_where_cuda_can_no_longer_be_hidden(device, monkeypatch) -> None:
    monkeypatch.setattr(gpu, "get_context", lambda method: Pool("no kernels"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match="no kernels, but CUDA is in use already: restart"):
        gpu.hide_unusable()


@pytest.mark.full
def test_the_trial_runs_in_a_process_of_its_own_and_ends() -> None:
    # with a driver it computes, without one it finds no device: neither is a fault
    code = "import torch\nfrom astkit.export import gpu\nif __name__ == '__main__':\n"
    code += " torch.version.cuda = '12'\n real = torch.cuda.device_count\n"
    code += " torch.cuda.device_count = lambda: real() or 1\n print(gpu.hide_unusable())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.startswith("CUDA works"), result.stderr
