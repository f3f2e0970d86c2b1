"""The same loop on an accelerator; skipped where torch sees none."""

import pytest
import torch

from astkit import models
from astkit.datasets import Images, Loader
from astkit.gating import Gate, RandomSubset
from astkit.trainers import Budget, GatedStep, SampleStep, TrainConfig, Trainer

pytestmark = pytest.mark.skipif(
    not torch.accelerator.is_available(), reason="torch sees no accelerator (GPU)"
)


def train(policy=None, step=None, **config):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (256, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (256,), generator=generator)
    images = Images(pixels, labels, tuple("abcdefghij"), "noise")
    trainer = Trainer(
        models.build("simple_cnn", images.shape, images.num_classes),
        Loader(images, 64, augment=("crop", "flip")),
        Loader(images, 128, shuffle=False),
        budget=Budget(epochs=2),
        policy=policy,
        step=step,
        config=TrainConfig(**config),
    )
    trainer.run()
    return trainer


@pytest.mark.parametrize(
    ("score", "controller"),
    [("loss", "log_integral"), ("loss_and_contrast", "origin_pi"), ("loss", "top_k")],
)
def test_gated_training_counts_there_what_it_counts_here(score, controller):
    there = train(step=GatedStep(Gate(0.25, score, controller)))
    assert there.device.type != "cpu"
    assert there.ledger.samples.scored == 512
    assert there.ledger.samples.trained + there.ledger.samples.skipped == 512
    assert there.ledger.seconds["training"] > 0


@pytest.mark.parametrize("update", [None, "per_batch", "per_sample"])
def test_every_step_runs_there(update):
    assert train(step=update and SampleStep(Gate(0.1), update)).done


def test_selection_before_loading_runs_there():
    assert train(RandomSubset(0.25)).ledger.samples.trained == 128


@pytest.mark.parametrize("policy", ["infobatch", "repb", "selective_backprop", "kakurenbo"])
def test_weighted_plans_and_whole_batches_run_there(policy):
    assert train(policy).done


def test_bf16_channels_last_runs_there():
    trainer = train(Gate(0.25), precision="bf16", channels_last=True)
    assert trainer.history.epochs[-1]["val_loss"] < 3
