"""What "auto" becomes: decided once, recorded with its reason, kept when a run goes on."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from astkit import models, rng
from astkit.datasets import Images, Loader, Prefetched
from astkit.datasets import settings as memory
from astkit.gating import Gate, cross_entropy_rows
from astkit.trainers import TrainConfig, Trainer
from astkit.trainers import autotune as resolve
from astkit.trainers.autotune import Scene, activation_bytes, open_choices
from tests.trainers.states import hand_over, leave_after

AUTO = ("precision", "channels_last", "compile", "prefetch", "batch_size")


def images(rows=96, labels=4):
    random = rng.generator(0, "test images")
    pixels = torch.randint(256, (rows, 3, 8, 8), dtype=torch.uint8, generator=random)
    return Images(pixels, torch.arange(rows) % labels, tuple("abcd"), "noise")


def trainer(config, data=None, **options):
    loader = data or Loader(images(), 16)
    model = models.build("digits_cnn", (3, 8, 8), 4)
    return Trainer(model, loader, epochs=1, config=config, device="cpu", **options)


def scene(model, batch, **changes):
    facts = {"resident": True, "keyed": True, "rows": 96, **changes}
    return Scene(model, batch, torch.device("cpu"), cross_entropy_rows, **facts)


@pytest.fixture
def fast_bf16(monkeypatch):
    """A machine on which bf16 in NHWC is twice as fast: the seconds of arms are made up."""
    from astkit.profiling.benchmark import Timings

    def interleaved(arms, rounds, baseline, **options):
        speed = {name: 2.0 if name == "bf16, channels_last" else 1.0 for name in arms}
        return Timings({name: (1 / speed[name],) * rounds for name in arms}, baseline)

    monkeypatch.setattr(resolve, "interleaved", interleaved)
    monkeypatch.setattr(resolve, "stamp", lambda: {"bf16_native": True})


def test_nothing_open_is_nothing_decided():
    work = trainer(TrainConfig())
    work.run()
    assert open_choices(work.config) == []
    assert work.setting_up.decisions == []
    assert work.setting_up.config == work.config


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
    assert found.config.batch_size == 2  # a 32nd of 96 rows, down to a power of two
    assert work.train.batch_size == 2
    assert work.position.step == 48
    json.dumps(found.record(), allow_nan=False)


def test_what_is_said_outright_is_not_probed(monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("probed")

    monkeypatch.setattr(resolve, "interleaved", refuse)
    work = trainer(TrainConfig(precision="fp32", channels_last=True, compile="auto"))
    work.run()
    assert [decision.name for decision in work.setting_up.decisions] == ["compile"]


def test_without_instructions_for_bf16_it_is_not_tried(monkeypatch):
    monkeypatch.setattr(resolve, "stamp", lambda: {"bf16_native": False})
    work = trainer(TrainConfig(precision="auto"))
    work.run()
    (decision,) = work.setting_up.decisions
    assert (decision.name, decision.value) == ("precision", "fp32")
    assert "no instructions for bf16" in decision.why


def test_a_probe_that_gains_too_little_changes_nothing(monkeypatch, fast_bf16):
    monkeypatch.setattr(resolve, "FASTER", 2.5)
    work = trainer(TrainConfig(precision="auto", channels_last="auto"))
    work.run()
    assert (work.setting_up.config.precision, work.setting_up.config.channels_last) == (
        "fp32",
        False,
    )


def test_a_resumed_run_decides_nothing_anew(fast_bf16, monkeypatch):
    config = TrainConfig(precision="auto", channels_last="auto", compile="auto")
    first = leave_after(trainer(config), 3)

    def refuse(*args, **options):
        raise AssertionError("probed again")

    monkeypatch.setattr(resolve, "interleaved", refuse)
    second = hand_over(first, trainer(config))
    first.run()
    second.run()
    assert second.setting_up.decisions == first.setting_up.decisions
    for ours, theirs in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_deciding_leaves_weights_and_random_numbers_alone(fast_bf16, unchanged):
    work = trainer(TrainConfig(precision="auto", channels_last="auto", batch_size="auto"))
    before = torch.random.get_rng_state()
    with unchanged(work.model), work.setting_up.tuned(fixed_shapes=True):
        assert work.setting_up.decisions
    assert torch.equal(before, torch.random.get_rng_state())


def of_memory(tmp_path, monkeypatch, machine, limit=None, anon=0):
    """Free memory as the files of a Linux machine, and of a container on it, tell of it."""
    (tmp_path / "meminfo").write_text(f"MemTotal: {machine} kB\nMemAvailable: {machine >> 10} kB\n")
    group = tmp_path / "cgroup"
    group.mkdir(exist_ok=True)
    (group / "memory.max").write_text("max\n" if limit is None else f"{limit}\n")
    (group / "memory.stat").write_text(f"anon {anon}\nfile 5000000\nshmem 0\n")
    monkeypatch.setattr(memory, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_GROUP", group)


def test_an_automatic_batch_size_respects_a_containers_memory_limit(tmp_path, monkeypatch):
    data = Loader(images(64 * 64), 16)
    batch = next(iter(data.batches(0)))
    per_row = activation_bytes(scene(models.build("digits_cnn", (3, 8, 8), 4), batch)) / 16

    def chosen(**options):
        of_memory(tmp_path, monkeypatch, **options)
        work = trainer(TrainConfig(batch_size="auto"), data)
        next(work.steps())
        assert data.batch_size == 16  # the caller's own stays as it was
        return work.train.batch_size

    assert chosen(machine=1 << 34) == 128  # a 32nd of the rows
    for anon in (0, 1 << 20):
        limit = anon + int(2 * 21 * per_row)  # half of what is left holds 21 rows
        assert chosen(machine=1 << 34, limit=limit, anon=anon) == 16
    assert chosen(machine=1 << 34, limit=1 << 20, anon=1 << 21) == 1
    assert chosen(machine=int(2 * 9 * per_row) + 1024, limit=1 << 33) == 8


def test_the_batch_size_of_a_foreign_loader_is_its_own():
    data = DataLoader(TensorDataset(torch.rand(8, 3, 8, 8), torch.arange(8) % 4), 4)
    with pytest.raises(ValueError, match=r"batch_size is 2, but .* own loader"):
        trainer(TrainConfig(batch_size=2), data)


def test_prefetching_gives_the_same_run():
    plain, ahead = trainer(TrainConfig()), trainer(TrainConfig(prefetch=True))
    plain.run()
    ahead.run()
    assert isinstance(ahead.feed.source, Prefetched)
    for ours, theirs in zip(plain.model.parameters(), ahead.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_saved_activations_are_counted_in_bytes():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5), torch.nn.Tanh())
    black = Images(torch.zeros(8, 3, 2, 2, dtype=torch.uint8), torch.arange(8) % 4, "abcd", "x")
    batch = next(iter(Loader(black, 8).batches(0)))
    # kept: inputs of the layer (8 x 12), outputs of tanh and log-softmax (8 x 5 each), labels (8)
    kept = 4 * 8 * 12 + 2 * 4 * 8 * 5 + 8 * 8
    assert activation_bytes(scene(model, batch)) == pytest.approx(kept, abs=4 * 8 * 5 + 64)


def test_threads_and_system_are_put_back_and_recorded():
    before = torch.get_num_threads()
    work = trainer(TrainConfig(threads=1))
    for _ in work.steps():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    assert work.setting_up.record()["system"]["threads"]["value"] == 1


def test_the_effective_batch_size_is_reported():
    work = trainer(TrainConfig(accumulation_steps=3), policy=Gate(0.5))
    work.run()
    record = work.setting_up.record()
    assert (record["batch_size"], record["effective_batch_size"]) == (16, 48)
    assert work.learner.updates.steps == 2


def test_a_share_of_the_validation_comes_with_an_interval():
    work = trainer(TrainConfig(validation_fraction=0.5), validation=Loader(images(), 16))
    (epoch,) = work.run().epochs
    assert work.ledger.samples.evaluated == 48
    assert (
        0 <= epoch["val_accuracy_low"] <= epoch["val_accuracy"] <= epoch["val_accuracy_high"] <= 1
    )
