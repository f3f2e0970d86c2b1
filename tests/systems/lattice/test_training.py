"""The trainer of a lattice: losses, calls, gating, checkpoints, learning."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from astkit import rng
from astkit.datasets.pairs import TextPair
from astkit.gating import Gate
from astkit.systems.lattice.model import EnergyFlowLattice, LatticeConfig
from astkit.systems.lattice.tasks import LatticeTask, Pairs, retrieval, text_task
from astkit.systems.lattice.training import LatticeLoss, LatticeTrainer
from tests.build import refused

Lattice = EnergyFlowLattice | LatticeConfig
SMALL = LatticeConfig(dim=16, width=4, height=4, depth=3, hidden=8, mapper_width=48)


def task(n: int = 80) -> LatticeTask:
    x = F.normalize(torch.randn(n, 16, generator=rng.generator(1)))
    y = F.normalize(torch.randn(n, 16, generator=rng.generator(2)))
    return LatticeTask("made", Pairs(x[:-16], y[:-16]), Pairs(x[-16:], y[-16:]))


def texts(n: int = 60) -> LatticeTask:
    names = ("cell", "flow", "surface", "energy", "neuron")
    pairs = [
        TextPair(f"{names[i % 5]} number {i}", f"the {names[(i + 1) % 5]} is next")
        for i in range(n)
    ]
    return text_task(pairs, dim=16)


def cpu(lattice: Lattice, task: LatticeTask, **options: Any) -> LatticeTrainer:
    return LatticeTrainer(lattice, task, device="cpu", **options)


def trained(lattice: Lattice, task: LatticeTask, **options: Any) -> LatticeTrainer:
    trainer = cpu(lattice, task, **options)
    trainer.run()
    return trainer


def test_the_metrics_of_a_pass_are_those_of_the_model():
    made = task()
    done = trained(SMALL, made, steps=2, batch_size=16)
    x, y = made.validation.x, made.validation.y
    with torch.no_grad():
        found = retrieval(done.model(x).y, y)
    record, again = done.history.epochs[-1], done.evaluate(made.validation)
    for name in ("cosine", "top1", "top5", "mrr"):
        assert record[f"val_{name}"] == again[name] == pytest.approx(found[name], abs=1e-6)
    assert record["val_loss"] == pytest.approx(1 - found["cosine"], abs=1e-6)
    assert done.ledger.samples.evaluated == 32
    assert done.ledger.samples.trained == 32


def test_the_loss_of_a_row_is_that_of_a_plain_computation():
    made, lattice = task(), EnergyFlowLattice(SMALL)
    x, y = made.train.fetch(torch.arange(6))
    others = made.train.y[:10]
    with torch.no_grad():
        out = lattice(x)
        fast = LatticeLoss(0.2, others, temperature=0.5)(out, y)
    for i in range(6):
        cosines = [float(F.cosine_similarity(out.y[i], other, dim=0)) for other in others]
        exps = torch.tensor(cosines).div(0.5).exp()  # the row's own target is number i of them
        slow = 1 - cosines[i] - 0.2 * float((exps[i] / exps.sum()).log())
        assert float(fast[i]) == pytest.approx(slow, rel=1e-4)


def test_one_encode_one_lattice_pass_and_one_decode_a_step():
    made = cpu(SMALL, texts(), steps=4, batch_size=20, text=1.0)
    calls = Counter()
    steps = made.steps()
    next(steps)  # the first one also counts FLOPs
    parts = (made.model, made.model.bridge.encoder, made.model.bridge.decoder)
    for part in parts:
        part.register_forward_hook(lambda part, *_: calls.update([part]))
    for number in (1, 2):
        next(steps)
        assert calls == dict.fromkeys(parts, number)
    steps.close()


def test_a_second_trainer_goes_on_with_the_texts_of_the_first():
    lattice, made = EnergyFlowLattice(SMALL), texts()
    bridge = trained(lattice, made, steps=2, text=1.0).bridge
    assert cpu(lattice, made, steps=2, text=1.0).bridge is lattice.bridge is bridge
    with pytest.raises(ValueError, match="the lattice's bridge knows the words of other texts"):
        cpu(lattice, texts(40), text=1.0)


def test_a_gate_chooses_pairs_by_their_loss():
    trainer = cpu(SMALL, task(), steps=8, batch_size=16, policy=Gate(0.25, controller="top_k"))
    x, y = task().train.x, task().train.y
    record = next(steps := trainer.steps())
    assert (record.metrics["trained"], record.metrics["seen"]) == (4, 16)
    steps.close()
    scored = trainer.policy.scores(trainer.scored(next(iter(trainer.train_data.batches(0)))))
    rows = trainer.train_data.order(0)[:16]
    slow = 1 - F.cosine_similarity(trainer.model(x[rows]).y, y[rows])
    torch.testing.assert_close(scored, slow.detach())


def test_wrong_arguments_are_refused():
    refused(
        (lambda: cpu(SMALL, task(), steps=0), "steps is 0: give a whole number of 1 or more"),
        (lambda: cpu(SMALL, task(), text=1.0), "has no texts"),
        (lambda: cpu(SMALL, task(), epochs=1), "LatticeTrainer determines epochs itself: omit it"),
        (lambda: cpu(SMALL, task(), metrics={}), "LatticeTrainer determines metrics itself"),
        (lambda: LatticeLoss(contrast=5.0), "contrast is 5.0, but others is None"),
        (lambda: LatticeLoss(text=1.0), "text is 1.0, but bridge is None"),
    )
