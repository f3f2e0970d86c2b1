"""Training with the kit's trainer: losses, calls, gating, checkpoints, learning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from astkit import rng
from astkit.batch import Batch
from astkit.gating import Gate
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
from astkit.trainers import Checkpoints, Trainer

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


def test_the_contrast_fades_over_the_steps():
    made, weights = task(), LossWeights(contrast=0.5, fade=True)
    x, y = made.train.fetch(torch.arange(6))
    trainer = lattice_trainer(SMALL, made, steps=10, weights=weights, device="cpu")
    rows, criterion = trainer.model, trainer.learner.criterion
    losses = {}
    with torch.no_grad():
        outputs = rows(x)
        for trainer.position.step in (0, 4, 10, 12):
            losses[trainer.position.step] = criterion(outputs, y)
    cosine = 1 - F.cosine_similarity(outputs, y)
    torch.testing.assert_close(losses[10], cosine)
    torch.testing.assert_close(losses[12], cosine)
    assert bool((losses[0] > cosine + 0.1).all())
    torch.testing.assert_close(losses[4] - cosine, 0.6 * (losses[0] - cosine))


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


def test_an_interrupted_run_ends_as_one_that_was_not(tmp_path):
    weights = LossWeights(contrast=0.5, fade=True)

    def settings() -> dict[str, Any]:
        return {"steps": 9, "batch_size": 16, "policy": Gate(0.5), "weights": weights}

    whole = train(SMALL, task(), **settings())

    def folder() -> Checkpoints:
        return Checkpoints(tmp_path / "c")

    first = lattice_trainer(SMALL, task(), device="cpu", checkpoints=folder(), **settings())
    steps = first.steps()
    for _ in range(6):
        next(steps)
    steps.close()
    model = EnergyFlowLattice(SMALL)
    with torch.no_grad():  # weights that a checkpoint has to overwrite
        for parameter in model.parameters():
            parameter.zero_()
    second = train(SMALL, task(), checkpoints=folder(), resume=True, model=model, **settings())
    for name, value in whole.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], value)
    for now, then in zip(second.history.epochs, whole.history.epochs, strict=True):
        # FLOPs are counted at a run's first batch, and how many flows there are depends on weights
        for name in now.keys() - {"seconds", "flops"}:
            assert now[name] == then[name]
    assert second.position.step == 9


def test_wrong_arguments_are_refused():
    for refused, told in (
        (lambda: lattice_trainer(replace(SMALL, dim=8), task()), r"config\.dim is 8, but the task"),
        (lambda: lattice_trainer(SMALL, task(), steps=0), "steps is 0"),
        (lambda: lattice_trainer(SMALL, task(), weights=LossWeights(text=1.0)), "has no texts"),
        (lambda: LossWeights(contrast=-1), "weight of contrast is -1"),
        (lambda: LossWeights(temperature=0), "temperature is 0"),
        (lambda: examples(LatticeRows(EnergyFlowLattice(SMALL)), texts()), "no text bridge"),
    ):
        with pytest.raises(ValueError, match=told):
            refused()
