"""When memory runs out: fewer rows at a time, the same rows, the same gradients."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from astkit.gating import Gate
from astkit.trainers import TrainConfig, Trainer
from astkit.trainers.optimisation import Optimisation
from astkit.trainers.refusals import out_of_memory
from tests import build
from tests.trainers.test_optimisation import batches, grads, made, train

EXHAUSTED = "CUDA out of memory. Tried to allocate 2.00 GiB (a simulated one)"


class Limited(nn.Module):
    """A network with memory for ``limit`` rows; ``where``: the passes that need memory.

    The first column of its inputs numbers the rows. Its last output is the row's entry in
    ``tally``, which `counting` adds to the row's loss: so ``tally.grad`` holds what each row has
    counted for in the gradients.
    """

    def __init__(self, where: str = "all", limit: int = 56) -> None:
        super().__init__()
        self.net = build.network(6, 4, 16, nn.Tanh(), dtype=torch.float64)
        self.tally = nn.Parameter(torch.zeros(56, dtype=torch.float64))
        self.where, self.limit = where, limit
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        graded = torch.is_grad_enabled()
        needed = {"all": True, "training": graded, "scoring": not graded}[self.where]
        if needed and len(x) > self.limit:
            raise torch.OutOfMemoryError(EXHAUSTED)
        return torch.cat([self.net(x[:, 1:]), self.tally[x[:, 0].long()][:, None]], 1)


def counting(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs[:, :-1], targets, reduction="none") + outputs[:, -1]


def numbered(rows: int = 56) -> tuple[Tensor, Tensor, Tensor]:
    x, y, weight = next(batches(weights="float64", rows=rows))
    assert weight is not None
    return torch.cat([torch.arange(rows)[:, None].double(), x], 1), y, weight


def limited(where: str, limit: int, **options: Any) -> Optimisation:
    config = TrainConfig(**{"lr": 1e-2, **options})
    return Optimisation(Limited(where, limit), config, counting)


@pytest.mark.parametrize("call", [2, 4, 7])
def test_memory_may_run_out_anywhere_in_a_batch(call: int) -> None:
    """In the middle of a batch some gradients are there already: they must not count twice."""
    short, enough = (limited("all", 56, micro_batch=8, accumulation_steps=3) for _ in range(2))
    batch = numbered()
    train(short, *batch)
    train(enough, *batch)
    left = iter(range(1, 1000))

    def fail(*_: Any) -> None:
        if next(left) == call:
            raise torch.OutOfMemoryError(EXHAUSTED)

    short.model.net[1].weight.register_hook(fail)
    short.watching = enough.watching = True
    train(short, *batch)
    train(enough, *batch)
    known, expected = short.take_predictions().predicted, enough.take_predictions().predicted
    assert torch.equal(known, expected)
    torch.testing.assert_close(grads(short.model), grads(enough.model), rtol=0, atol=1e-12)
    tally: Any = short.model.tally
    torch.testing.assert_close(tally.grad, 2 * batch[2], rtol=0, atol=1e-14)
    assert (short.passes.micro_batch, short.accumulated.pending) == (4, 2)


def test_a_row_that_does_not_fit_alone_is_an_error() -> None:
    work = limited("all", 0)
    with pytest.raises(torch.OutOfMemoryError):
        train(work, *numbered())
    assert work.passes.micro_batch == 1


@pytest.mark.parametrize("policy", [None, Gate(0.4), Gate(0.4, controller="top_k")])
@pytest.mark.parametrize("where", ["all", "scoring"])
def test_a_run_with_little_memory_is_that_with_enough(policy, where, difference):
    x, y, _ = numbered()

    def run(limit: int) -> Trainer:
        config = TrainConfig(lr=1e-2, clip_norm=None, accumulation_steps=2)
        options = {"policy": copy.deepcopy(policy), "config": config, "criterion": counting}
        data = TensorDataset(x, y)
        trainer = build.trainer(Limited(where, limit), data, data, batch_size=16, **options)
        trainer.run()
        return trainer

    short, enough = run(3), run(56)
    assert short.optimisation.passes.micro_batch in (1, 2, 3)
    assert enough.optimisation.passes.micro_batch is None
    assert short.ledger.samples == enough.ledger.samples
    assert short.ledger.flops == enough.ledger.flops
    assert difference(short.model, enough.model) < 1e-9
    for ours, theirs in zip(short.history.epochs, enough.history.epochs, strict=True):
        assert ours["val_loss"] == pytest.approx(theirs["val_loss"], rel=1e-9)


def test_what_runs_out_of_memory() -> None:
    assert out_of_memory(torch.OutOfMemoryError(EXHAUSTED))
    assert out_of_memory(MemoryError())
    assert out_of_memory(RuntimeError("HIP out of memory. Tried to allocate 1.0 GiB"))
    assert out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"))
    assert not out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError) as caught:  # what torch really says where a CPU has no more
        torch.empty(2**60, dtype=torch.uint8)
    assert out_of_memory(caught.value)


@pytest.mark.parametrize(("rows", "micro_batch"), [(25, 8), (25, 24), (33, 16), (17, 4)])
def test_micro_batches_leave_no_single_row_to_batchnorm(rows: int, micro_batch: int) -> None:
    work = made(build.network(6, 4, 8, nn.BatchNorm1d(8)), micro_batch=micro_batch)
    assert len(train(work, *next(batches(torch.float32, rows=rows)))) == rows
    assert work.steps == 1
