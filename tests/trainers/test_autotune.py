"""What "auto" becomes: decided once, recorded with its reason, kept when a run is resumed."""

from __future__ import annotations

import json

import pytest
import torch
from astkit.profiling.benchmark import Timings
from astkit.trainers.autotune import open_choices
from torch.utils.data import DataLoader, TensorDataset

from astkit import models, rng
from astkit.datasets import Images, Loader
from astkit.gating import Gate
from astkit.trainers import TrainConfig, Trainer, autotune
from tests.trainers.states import hand_over, leave_after

AUTO = ("precision", "channels_last", "compile", "prefetch")


def trainer(config, data=None, **options):
    random = rng.generator(0, "test images")
    pixels = torch.randint(256, (96, 3, 8, 8), dtype=torch.uint8, generator=random)
    images = Images(pixels, torch.arange(96) % 4, tuple("abcd"), "noise")
    model = models.build("digits_cnn", (3, 8, 8), 4)
    data = Loader(images, 16) if data is None else data
    return Trainer(model, data, epochs=1, config=config, device="cpu", **options)


@pytest.fixture
def fast_bf16(monkeypatch):
    """A machine on which bf16 in NHWC is twice as fast: the seconds of arms are made up."""

    def interleaved(arms, rounds, baseline, **options):
        speed = {name: 2.0 if name == "bf16, channels_last" else 1.0 for name in arms}
        return Timings({name: (1 / speed[name],) * rounds for name in arms}, baseline)

    monkeypatch.setattr(autotune, "interleaved", interleaved)
    monkeypatch.setattr(autotune, "stamp", lambda: {"bf16_native": True})


def refuse(*args, **options):
    raise AssertionError("probed")


def test_every_auto_is_decided_once_with_a_reason(fast_bf16):
    work = trainer(TrainConfig(**dict.fromkeys(AUTO, "auto")))
    work.run()
    found = work.setting_up
    assert {decision.name for decision in found.decisions} == set(AUTO)
    assert all(len(decision.why) > 10 for decision in found.decisions)
    assert open_choices(found.config) == []
    assert (found.config.precision, found.config.channels_last) == ("bf16", True)
    assert work.learner.config == found.config
    assert not found.config.compile  # on a CPU
    assert not found.config.prefetch
    json.dumps(found.record(), allow_nan=False)


def test_a_given_setting_is_not_probed(monkeypatch):
    monkeypatch.setattr(autotune, "interleaved", refuse)
    work = trainer(TrainConfig(precision="fp32", channels_last=True, compile="auto"))
    work.run()
    assert [decision.name for decision in work.setting_up.decisions] == ["compile"]
    plain = trainer(TrainConfig())
    plain.run()
    assert (plain.setting_up.decisions, plain.setting_up.config) == ([], plain.config)


def test_without_instructions_for_bf16_it_is_not_tried(monkeypatch):
    monkeypatch.setattr(autotune, "stamp", lambda: {"bf16_native": False})
    work = trainer(TrainConfig(precision="auto"))
    work.run()
    (decision,) = work.setting_up.decisions
    assert (decision.name, decision.value) == ("precision", "fp32")
    assert "no bf16 instructions" in decision.why


def test_a_probe_that_gains_too_little_changes_nothing(monkeypatch, fast_bf16):
    monkeypatch.setattr(autotune, "FASTER", 2.5)
    work = trainer(TrainConfig(precision="auto", channels_last="auto"))
    work.run()
    found = work.setting_up.config
    assert (found.precision, found.channels_last) == ("fp32", False)


def test_a_resumed_run_decides_nothing_anew(fast_bf16, monkeypatch):
    config = TrainConfig(precision="auto", channels_last="auto", compile="auto")
    first = leave_after(trainer(config), 3)
    monkeypatch.setattr(autotune, "interleaved", refuse)
    second = hand_over(first, trainer(config))
    first.run()
    second.run()
    assert second.setting_up.decisions == first.setting_up.decisions
    for ours, theirs in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_probes_leave_weights_and_random_numbers_alone(monkeypatch, unchanged):
    called = []

    def interleaved(arms, rounds, baseline, **options):
        called.extend(arm() for arm in arms.values())
        return Timings(dict.fromkeys(arms, (1.0,) * rounds), baseline)

    monkeypatch.setattr(autotune, "interleaved", interleaved)
    monkeypatch.setattr(autotune, "stamp", lambda: {"bf16_native": True})
    work = trainer(TrainConfig(precision="auto", channels_last="auto"))
    before = torch.random.get_rng_state()
    with unchanged(work.model), work.setting_up.tuned(fixed_shapes=True):
        assert len(called) == 4
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_batch_size_of_a_foreign_loader_is_its_own():
    data = DataLoader(TensorDataset(torch.rand(8, 3, 8, 8), torch.arange(8) % 4), 4)
    with pytest.raises(ValueError, match=r"batch_size is 2, but .* own loader"):
        trainer(TrainConfig(batch_size=2), data)


def test_threads_and_system_are_restored_and_recorded():
    before = torch.get_num_threads()
    work = trainer(TrainConfig(threads=1, allocator="auto"))
    for _ in work.steps():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    record = work.setting_up.record()["system"]
    assert record["threads"]["value"] == 1
    assert record["allocator"]["why"]


def test_the_effective_batch_size_is_reported():
    work = trainer(TrainConfig(accumulation_steps=3), policy=Gate(0.5))
    work.run()
    record = work.setting_up.record()
    assert (record["batch_size"], record["effective_batch_size"]) == (16, 48)
    assert work.learner.updates.steps == 2
