"""The same loop on an accelerator; skipped where torch sees none."""

import pytest
import torch

from astkit import models
from astkit.datasets import Images, Loader
from astkit.gating import Gate, RandomSubset
from astkit.trainers import Budget, DenseStep, GatedStep, SampleStep, TrainConfig, Trainer

pytestmark = pytest.mark.skipif(
    not torch.accelerator.is_available(), reason="torch sees no accelerator (GPU)"
)


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (256, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (256,), generator=generator)
    return Images(pixels, labels, tuple("abcdefghij"), "noise")


def train(images, step=None, sampler=None, **config):
    trainer = Trainer(
        models.build("simple_cnn", images.shape, images.num_classes),
        Loader(images, 64, augment=("crop", "flip")),
        Loader(images, 128, shuffle=False),
        budget=Budget(epochs=2),
        step=step,
        sampler=sampler,
        config=TrainConfig(**config),
    )
    trainer.run()
    return trainer


@pytest.mark.parametrize("score", ["loss", "loss_and_contrast"])
@pytest.mark.parametrize("controller", ["log_integral", "origin_pi", "top_k"])
def test_gated_training_counts_there_what_it_counts_here(images, score, controller):
    there = train(images, GatedStep(Gate(0.25, score, controller)))
    assert there.device.type != "cpu"
    assert there.ledger.samples.scored == 512
    assert there.ledger.samples.trained + there.ledger.samples.skipped == 512
    assert there.ledger.seconds["training"] > 0


@pytest.mark.parametrize(
    "step", [DenseStep, lambda: SampleStep(Gate(0.1), "per_batch"), lambda: SampleStep(Gate(0.1))]
)
def test_every_step_runs_there(images, step):
    assert train(images, step()).done


def test_selection_before_loading_runs_there(images):
    assert train(images, sampler=RandomSubset(0.25)).ledger.samples.trained == 128


def test_bf16_channels_last_runs_there(images):
    trainer = train(images, GatedStep(Gate(0.25)), precision="bf16", channels_last=True)
    assert trainer.history.epochs[-1]["val_loss"] < 3
