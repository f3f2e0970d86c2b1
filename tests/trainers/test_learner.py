"""The learner: precision, memory order, clipping, learning rates, refusals."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from astkit.trainers.learner import _FUSED
from torch import nn

from astkit import models, rng
from astkit.datasets import Batch, Images, Loader
from astkit.gating import Gate
from astkit.profiling.ledger import Ledger
from astkit.trainers import Learner, TrainConfig, Trainer, choose_device


@pytest.fixture
def linear():
    with rng.isolated("cpu", 0):
        return nn.Linear(4, 3)


@pytest.fixture
def batch():
    with rng.isolated("cpu", 1):
        return torch.randn(6, 4), torch.randint(0, 3, (6,))


def test_groups_keep_their_own_rates(linear):
    groups = [{"params": [linear.weight], "lr": 0.4}, {"params": [linear.bias], "lr": 0.02}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    learner = Learner(linear, TrainConfig(), optimizer=optimizer)
    for factor in (1.0, 0.5, 0.0, 0.25):  # each time of the rate at the start, not of the last one
        learner.set_lr(factor)
        assert [group["lr"] for group in optimizer.param_groups] == [0.4 * factor, 0.02 * factor]


def test_an_optimizer_of_ones_own_is_the_one_that_steps(linear, batch):
    x, y = batch
    plain = copy.deepcopy(linear)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.4)
    learner = Learner(linear, TrainConfig(clip_norm=None), optimizer=optimizer)
    learner.train(x, y)
    F.cross_entropy(plain(x), y).backward()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter -= 0.4 * parameter.grad
    torch.testing.assert_close(linear.weight, plain.weight)
    torch.testing.assert_close(linear.bias, plain.bias)


@pytest.mark.parametrize("fused", [False, True])
def test_the_state_of_an_optimizer_moves_with_the_model(linear, fused, monkeypatch):
    """Adagrad makes its state when it is built; "meta" stands for a device."""
    optimizer = torch.optim.Adagrad(linear.parameters(), fused=fused)
    future = torch.__future__
    monkeypatch.setattr(future, "_swap_module_params_on_conversion", True)  # as CUDA: same objects
    Learner(linear, TrainConfig(), optimizer=optimizer, device="meta")
    for state in optimizer.state.values():
        assert state["sum"].device.type == "meta"
        assert state["step"].device.type == ("meta" if fused else "cpu")


def test_adamw_is_fused_only_where_its_kernels_skip_a_flagged_step(linear):
    for device, expected in (("cpu", True), ("meta", False)):
        learner = Learner(copy.deepcopy(linear), TrainConfig(), device=device)
        assert learner.optimizer.defaults["fused"] is expected
    assert "mps" not in _FUSED  # ignored the flag until June 2026


def test_a_loss_that_is_not_finite_is_refused(linear, unchanged):
    learner = Learner(linear, TrainConfig())
    for value in (math.nan, math.inf, -math.inf):
        sentence = rf"loss became -?{abs(value)}: .*lower lr"
        with unchanged(linear), pytest.raises(FloatingPointError, match=sentence):
            learner.updates.backward(linear.weight.sum() * value, 1.0, 6)
        assert all(parameter.grad is None for parameter in linear.parameters())


def test_bf16_computes_in_bf16_and_keeps_float32_weights_and_losses(linear, batch):
    x, y = batch
    seen = []
    linear.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    learner = Learner(linear, TrainConfig(precision="bf16"))
    losses = learner.scored(Batch(None, x, y)).losses
    scores = Gate(0.5).scores(learner.scored(Batch(None, x, y)))
    assert seen == [torch.bfloat16] * 2
    assert losses.dtype == scores.dtype == torch.float32
    learner.gradients(x, y)
    assert seen.pop() == torch.bfloat16
    assert linear.weight.dtype == linear.weight.grad.dtype == torch.float32
    learner.end_batch(Ledger())
    assert linear.weight.dtype == torch.float32
    exact = Learner(linear, TrainConfig()).scored(Batch(None, x, y)).losses
    assert seen[-1] == torch.float32
    assert losses.shape == exact.shape == (6,)


@pytest.fixture
def images():
    with rng.isolated("cpu", 2):
        pixels = torch.randint(0, 256, (48, 3, 8, 8), dtype=torch.uint8)
        labels = torch.randint(0, 4, (48,))
    return Images(pixels, labels, ("a", "b", "c", "d"), "noise")


def test_channels_last_changes_the_order_in_memory_and_nothing_else(images, difference):
    finals = []
    for channels_last in (False, True):
        model = models.build("digits_cnn", (3, 8, 8), 4)
        layouts = []
        first, second = (layer for layer in model if isinstance(layer, nn.Conv2d))
        second.register_forward_hook(  # which gets what the first one gave
            lambda module, inputs, output, kept=layouts: kept.append(
                inputs[0].is_contiguous(memory_format=torch.channels_last)
            )
        )
        trainer = Trainer(
            model,
            Loader(images, 16),
            Loader(images, 16),
            epochs=1,
            policy=Gate(0.5),
            config=TrainConfig(channels_last=channels_last),
        )
        trainer.run()
        assert set(layouts) == {channels_last}
        assert first.weight.is_contiguous(memory_format=torch.channels_last) == channels_last
        finals.append(trainer)
    assert difference(finals[0].model, finals[1].model) < 1e-5
    assert finals[0].ledger.flops == finals[1].ledger.flops


def test_inputs_that_are_no_images_are_left_as_they_are():
    learner = Learner(nn.Linear(4, 3), TrainConfig(channels_last=True))
    for x in (torch.randn(6, 4), {"pixels": torch.randn(6, 3, 2, 2)}):
        batch = Batch(None, x, torch.zeros(6))
        assert learner.prepare(batch) is batch
    whole = learner.prepare(Batch(None, *[torch.randn(6, 3, 2, 2)] * 2))
    assert whole.x is whole.y


def test_a_loss_for_each_pixel_is_averaged_over_the_row():
    with rng.isolated("cpu", 0):
        model, x = nn.Conv2d(1, 3, 1), torch.randn(5, 1, 4, 4)
        y = torch.randint(0, 3, (5, 4, 4))
    losses = Learner(model, TrainConfig()).scored(Batch(None, x, y)).losses
    expected = [F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]) for i in range(5)]
    torch.testing.assert_close(losses, torch.stack(expected))


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_weighted_rows_and_tokens_are_divided_by_the_normaliser(micro_batch):
    """Held against plain torch; the parts of a batch share its normaliser."""
    with rng.isolated("cpu", 0):
        model, x = nn.Linear(4, 3), torch.randn(5, 2, 4)
        y, tokens = torch.randint(0, 3, (5, 2)), torch.rand(5, 2)
    y[0, 1] = -100
    config = TrainConfig(micro_batch=micro_batch, clip_norm=None)
    raw = F.cross_entropy(model(x).movedim(-1, 1), y, reduction="none")
    rows = torch.stack([raw[0, 0], *raw[1:].mean(1)])
    for weight, normaliser, losses in (
        (None, None, rows.sum() / 5),
        (tokens[:, 0], None, (tokens[:, 0] * rows).sum() / tokens[:, 0].sum()),
        (tokens[:, 0], 7.0, (tokens[:, 0] * rows).sum() / 7),
        (tokens, 7.0, (tokens * raw).sum() / 7),
    ):
        expected = torch.autograd.grad(losses, model.weight, retain_graph=True)[0]
        learner = Learner(copy.deepcopy(model), config)
        learner.optimizer = torch.optim.SGD(learner.model.parameters(), lr=1.0)
        learner.updates.optimizer = learner.optimizer
        found = learner.train(x, y, weight, normaliser=normaliser)
        torch.testing.assert_close(found, rows.detach())
        torch.testing.assert_close(model.weight - learner.model.weight, expected)


@pytest.mark.parametrize(("found", "expected"), [("xpu", "xpu"), (None, "cpu")])
def test_auto_takes_the_accelerator_that_torch_sees(monkeypatch, found, expected):
    available = {True: found and torch.device(found), False: torch.device("xpu")}
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available: available[check_available]
    )
    assert choose_device() == choose_device("auto") == torch.device(expected)
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device(torch.device("meta")) == torch.device("meta")
