"""Training with the kit's trainer: losses, calls, gating, checkpoints, learning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from astkit import rng
from astkit.batch import Batch
from astkit.gating import Gate, RandomSubset
from astkit.lattice.baselines import baselines, retrieval
from astkit.lattice.config import LatticeConfig
from astkit.lattice.model import EnergyFlowLattice
from astkit.lattice.pairs import TextPair
from astkit.lattice.tasks import Pairs, Task, text_task
from astkit.lattice.training import (
    SETTINGS,
    LatticeLoss,
    LatticeRows,
    LossWeights,
    examples,
    lattice_trainer,
)
from astkit.trainers import Trainer
from tests.gating.without_float64 import WithoutFloat64

SMALL = LatticeConfig(dim=16, width=4, height=4, depth=3, hidden=8, mapper_width=48)


def task(n: int = 80) -> Task:
    x = F.normalize(torch.randn(n, 16, generator=rng.generator(1)))
    y = F.normalize(torch.randn(n, 16, generator=rng.generator(2)))
    rows = torch.arange(n)
    return Task("made", Pairs(x, y, rows[:-16]), Pairs(x, y, rows[-16:]))


def texts(n: int = 60) -> Task:
    names = ("cell", "flow", "surface", "energy", "neuron")
    pairs = [
        TextPair(f"{names[i % 5]} number {i}", f"the {names[(i + 1) % 5]} is next")
        for i in range(n)
    ]
    return text_task(pairs, dim=16)


def train(config: LatticeConfig, task: Task, **options: Any) -> Trainer:
    trainer = lattice_trainer(config, task, device="cpu", **options)
    trainer.run()
    return trainer


@pytest.mark.full
def test_a_lattice_learns_the_identity():
    made = task(400)
    easy = Task("identity", *(replace(part, y=part.x) for part in (made.train, made.validation)))
    done = train(replace(SMALL, mapper_width=96), easy, steps=150, batch_size=32)
    metrics = done.history.epochs[-1]
    assert metrics["val_mrr"] > 4 * baselines(easy)["train mean"].mrr
    assert metrics["val_cosine"] > 0.5
    assert done.position.step == 150


def test_as_many_steps_as_were_asked_for():
    for steps in (1, 11):
        done = train(replace(SMALL, lattice=False), task(), steps=steps, batch_size=16)
        assert done.position.step == len(done.history.steps) == steps


def test_the_metrics_of_a_pass_are_those_of_the_model():
    made = task()
    done = train(SMALL, made, steps=2, batch_size=16)
    x, y = made.validation.fetch(torch.arange(16))
    with torch.no_grad():
        predicted = done.model.lattice(x).y
    found = retrieval(predicted, y)
    record = done.history.epochs[-1]
    for name in ("cosine", "top1", "top5", "mrr"):
        assert record[f"val_{name}"] == pytest.approx(getattr(found, name), abs=1e-6)
    assert record["val_loss"] == pytest.approx(1 - found.cosine, abs=1e-6)
    assert done.ledger.samples.evaluated == 16
    assert done.ledger.samples.trained == 32


def test_a_device_without_float64_is_enough():
    made = lattice_trainer(SMALL, task(), batch_size=16, device="cpu")
    criterion = made.learner.criterion
    found = made.evaluate(task().validation)
    made.learner.criterion = lambda *both: WithoutFloat64.on(criterion(*both))
    assert made.evaluate(task().validation) == found


def test_the_loss_of_a_row_is_that_of_a_plain_computation():
    made, rows = task(), LatticeRows(EnergyFlowLattice(SMALL))
    x, y = made.train.fetch(torch.arange(6))
    others = made.train.fetch(torch.arange(10))[1]
    with torch.no_grad():
        fast = LatticeLoss(rows, LossWeights(contrast=0.2, temperature=0.5), others)(rows(x), y)
        out = rows.lattice(x)
    for i in range(6):
        cosines = [float(F.cosine_similarity(out.y[i], other, dim=0)) for other in others]
        exps = torch.tensor(cosines).div(0.5).exp()  # the row's own target is number i of them
        slow = 1 - cosines[i] - 0.2 * float((exps[i] / exps.sum()).log())
        assert float(fast[i]) == pytest.approx(slow, rel=1e-4)


def test_the_contrast_fades_with_the_budget():
    made, weights = task(), LossWeights(contrast=0.5, fade=True)
    x, y = made.train.fetch(torch.arange(6))
    trainer = lattice_trainer(SMALL, made, steps=10, weights=weights, device="cpu")
    rows, criterion = trainer.model, trainer.learner.criterion
    losses = {}
    with torch.no_grad():
        outputs = rows(x)
        for trainer.position.spent in (0.0, 0.4, 1.0):
            losses[trainer.position.spent] = criterion(outputs, y)
    cosine = 1 - F.cosine_similarity(outputs, y)
    torch.testing.assert_close(losses[1.0], cosine)
    assert bool((losses[0.0] > cosine + 0.1).all())
    torch.testing.assert_close(losses[0.4] - cosine, 0.6 * (losses[0.0] - cosine))


def test_the_contrast_fades_out_with_a_policy_too_and_counts_in_full_in_validation():
    weights = LossWeights(contrast=0.5, fade=True)
    options = {"steps": 8, "batch_size": 16, "weights": weights, "policy": RandomSubset(0.5)}
    trainer = lattice_trainer(SMALL, task(), device="cpu", **options)
    criterion, left = trainer.learner.criterion, []
    for record in trainer.steps():
        left.append(criterion.left())
        assert record.phase == "train"
    assert trainer.position.step == 4  # of 8 batches without the policy
    assert left == pytest.approx([1 - 2 * step / 7.5 for step in (1, 2, 3)] + [1.0], abs=0.01)
    x, y = task().validation.whole()
    with torch.no_grad():
        losses = LatticeLoss(trainer.model, weights, criterion.others)(trainer.model(x), y)
    assert trainer.history.epochs[-1]["val_loss"] == pytest.approx(float(losses.mean()))


def test_the_contrast_knows_no_target_of_the_validation_part():
    made = task()
    trainer = lattice_trainer(SMALL, made, weights=LossWeights(contrast=1.0), device="cpu")
    others = trainer.learner.criterion.others
    wanted = made.train.fetch(torch.arange(64))[1]
    torch.testing.assert_close(others.sort(0).values, wanted.sort(0).values)


def test_one_encode_one_lattice_pass_and_one_decode_a_step():
    weights = LossWeights(text=1.0)
    made = lattice_trainer(SMALL, texts(), steps=4, batch_size=20, weights=weights, device="cpu")
    calls = dict.fromkeys(("encoder", "lattice", "decoder"), 0)

    def count(name):
        def hook(*_):
            calls[name] += 1

        return hook

    steps = made.steps()
    next(steps)  # the first one also counts FLOPs
    made.model.lattice.register_forward_hook(count("lattice"))
    made.model.bridge.encoder.register_forward_hook(count("encoder"))
    made.model.bridge.decoder.register_forward_hook(count("decoder"))
    for number in (1, 2):
        next(steps)
        assert calls == dict.fromkeys(calls, number)
    steps.close()


@pytest.mark.full
def test_the_bridge_learns_to_speak():
    done = train(
        SMALL,
        texts(),
        steps=120,
        batch_size=20,
        settings=replace(SETTINGS, lr=1e-2),
        weights=LossWeights(text=1.0),
    )
    losses = [record["loss"] for record in done.history.steps]
    assert losses[-1] < 0.3 * losses[0]
    assert all(p.grad is None or p.grad.isfinite().all() for p in done.model.parameters())
    found = examples(done.model, texts(), 4)
    assert sum(row["said"] == row["target"] for row in found) >= 2
    assert all(set(row) == {"source", "target", "said", "heard"} for row in found)
    known = set(done.model.bridge.vocabulary.tokens[4:])
    train_words = {w for p in texts().texts_of(texts().train) for w in p.source.split()}
    train_words |= {w for p in texts().texts_of(texts().train) for w in p.target.split()}
    assert known == train_words  # nothing of the validation part


def test_a_gate_chooses_pairs_by_their_loss():
    done = train(SMALL, task(), steps=8, batch_size=16, policy=Gate(0.25))
    counts = done.ledger.samples
    assert counts.scored == 128
    assert 0 < counts.trained < 128
    x, y = task().train.fetch(torch.arange(12))
    scores = done.step.gate.scores(done.learner.scored(Batch(torch.arange(12), x, y)))
    slow = 1 - F.cosine_similarity(done.model.lattice(x).y, y)
    torch.testing.assert_close(scores, slow.detach())


def test_any_pairs_are_evaluated():
    done = train(SMALL, task(), steps=2, batch_size=16)
    found, last = done.evaluate(task().validation), done.history.epochs[-1]
    assert found.pop("samples") == 16
    assert {f"val_{name}": value for name, value in found.items()}.items() <= last.items()
    spoken = lattice_trainer(SMALL, texts(), weights=LossWeights(text=1.0), device="cpu")
    with pytest.raises(ValueError, match=r"x has shape \[\d+, 16\]: give \[batch, 40\]"):
        spoken.evaluate(texts().validation)


def test_a_given_model_brings_its_settings():
    deep = EnergyFlowLattice(replace(SMALL, dim=16, width=5))
    weights = LossWeights(text=1.0)
    made = lattice_trainer(SMALL, texts(), model=deep, steps=1, weights=weights, device="cpu")
    made.run()
    assert made.model.lattice is deep
    with pytest.raises(ValueError, match="dim is 16, but the embeddings of 'texts' have 8"):
        lattice_trainer(replace(SMALL, dim=8), text_task(texts().texts, dim=8), model=deep)


def test_a_run_is_not_resumed_with_other_settings(tmp_path):
    def trainer(**changes):
        config, folder = replace(SMALL, **changes), tmp_path / "kept"
        options = {"steps": 2, "batch_size": 16, "checkpoints": folder, "device": "cpu"}
        return lattice_trainer(config, task(), **options, resume=folder.exists())

    trainer().run()
    assert trainer().done
    for changes in ({"energy_rule": "original"}, {"z_min": 1.0}, {"tau": 0.7}):
        with pytest.raises(ValueError, match="made with other settings"):
            trainer(**changes)


def test_wrong_arguments_are_refused():
    for refused, told in (
        (
            lambda: lattice_trainer(replace(SMALL, dim=8), task()),
            r"config\.dim is 8, but the",
        ),
        (lambda: lattice_trainer(SMALL, task(), steps=0), "steps is 0"),
        (lambda: lattice_trainer(SMALL, task(), weights=LossWeights(text=1.0)), "has no texts"),
        (lambda: LossWeights(contrast=-1), "weight of contrast is -1"),
        (lambda: LossWeights(temperature=0), "temperature is 0"),
        (lambda: examples(LatticeRows(EnergyFlowLattice(SMALL)), texts()), "no text bridge"),
    ):
        with pytest.raises(ValueError, match=told):
            refused()
