"""One loss a row, whatever the model returns: against Python loops; and one sentence a misuse."""

import math
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import ConcatDataset

from astkit.gating import Gate, cross_entropy_rows, row_losses, token_losses
from astkit.gating.losses import labels_of, logits_of, reduced
from astkit.trainers import Trainer
from tests.build import refused
from tests.gating.streams import slow_loss

LOGITS = torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = torch.tensor([0, 4, 2, 2])
ROWS, SHORT = F.cross_entropy(LOGITS, LABELS, reduction="none"), LABELS.to(torch.uint16)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(0, 4), st.integers(2, 5))
def test_row_losses_equal_a_loop_over_rows_and_tokens(seed, rows, tokens, classes):
    """``tokens`` of 0: one label a row. A token with the label -100 does not count."""
    random = torch.Generator().manual_seed(seed)
    shape = (rows, tokens) if tokens else (rows,)
    logits = torch.randn(*shape, classes, generator=random, dtype=torch.float64)
    labels = torch.randint(classes, shape, generator=random)
    if tokens:
        labels[torch.rand(shape, generator=random) < 0.3] = -100
    expected = []
    for row in range(rows):
        pairs = zip(logits[row].reshape(-1, classes).tolist(), labels[row].reshape(-1), strict=True)
        found = [slow_loss(each, int(label)) for each, label in pairs if label != -100]
        expected.append(sum(found) / max(1, len(found)))
    for second in {False, bool(tokens) and tokens != classes}:
        outputs = logits.movedim(-1, 1) if second else logits
        if tokens == classes:  # which of the two holds the classes cannot be told
            with pytest.raises(ValueError, match="may hold the classes second or last"):
                row_losses(cross_entropy_rows, outputs, labels)
            return
        losses = row_losses(cross_entropy_rows, outputs, labels)
        assert losses.tolist() == pytest.approx(expected)


def test_logits_and_labels_are_found_wherever_they_are() -> None:
    class Output:
        logits, loss = LOGITS, torch.tensor(0.3)  # a mean of the batch is no loss a row

    for outputs in (
        LOGITS,
        Output(),
        {"logits": LOGITS, "hidden": torch.zeros(4)},
        (LOGITS, None),
        (torch.tensor(0.3), LOGITS),
        SimpleNamespace(logits=LOGITS),
        SimpleNamespace(loss=ROWS),
    ):
        for targets in (LABELS, {"ids": torch.zeros(4, 7), "labels": LABELS}, SHORT):
            assert row_losses(cross_entropy_rows, outputs, targets).equal(ROWS)
    assert labels_of({"labels": LABELS}) is LABELS
    assert logits_of((torch.tensor(0.3), LOGITS)) is LOGITS
    for floats in (torch.rand(4), torch.rand(4, 1)):  # of a regression
        with pytest.raises(
            ValueError, match=r"learns nothing: pass .* nn\.MSELoss.*, or class labels as int"
        ):
            row_losses(cross_entropy_rows, torch.rand_like(floats), floats)
    shares = row_losses(cross_entropy_rows, LOGITS, F.one_hot(LABELS, 5).double())
    torch.testing.assert_close(shares, ROWS)


def test_criteria_of_ones_own() -> None:
    outputs, targets = torch.randn(4, 2, 3), torch.randn(4, 2, 3)
    squares = (outputs - targets).square()
    losses = row_losses(nn.MSELoss(reduction="none"), outputs, targets)
    torch.testing.assert_close(losses, squares.flatten(1).mean(1))
    mask = torch.rand(4, 2, 3) < 0.5
    mask[1] = False
    squares[~mask] = math.nan  # what is left out must not spoil the rest
    found, told = token_losses(lambda o, t: (squares, mask), outputs, targets)
    assert found is squares
    assert told is mask
    kept = reduced(squares, mask)
    for row in range(4):
        real = squares[row][mask[row]]
        expected = float(real.mean()) if len(real) else 0.0
        assert float(kept[row]) == pytest.approx(expected)
    whole = {"x": outputs, "y": targets}  # a dict batch is compared as it is
    found = row_losses(lambda o, batch: (o - batch["y"]).abs(), outputs, whole)
    torch.testing.assert_close(found, (outputs - targets).abs().flatten(1).mean(1))


@pytest.mark.parametrize(
    ("outputs", "targets", "losses"),
    [
        ((4, 1), (4,), (4,)),
        ((1, 1), (1,), (1, 1)),  # of a single row
        ((4, 1), (4, 3), (4, 3)),
        ((4, 3, 1), (4, 1, 2), (4, 3, 2)),  # pairs within a row
        ((4, 5), (4,), (4, 4)),  # pairs of rows
        ((4, 5, 2, 2), (4, 2, 2), (4, 2, 2)),
        ((4, 2, 5), (4, 2), (4, 2)),
    ],
)
def test_losses_of_other_shapes_are_taken_as_they_are(outputs, targets, losses) -> None:
    found = torch.rand(losses)
    given, _ = token_losses(lambda o, t: found, torch.rand(outputs), torch.rand(targets))
    assert given is found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_scored_in_float32(dtype: torch.dtype) -> None:
    rounded, seen = (4 * LOGITS).to(dtype), []

    def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(outputs.dtype)
        return cross_entropy_rows(outputs, targets)

    def raw(outputs: Any, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs["logits"].double(), targets, reduction="none").to(dtype)

    found = row_losses(raw, {"logits": rounded}, LABELS)
    assert (found.dtype, found.isfinite().all()) == (torch.float32, True)
    for outputs in (rounded, {"logits": rounded}):
        given = criterion if outputs is rounded else cross_entropy_rows
        losses = row_losses(given, outputs, LABELS)
        assert losses.dtype == torch.float32
        expected = F.cross_entropy(rounded.double(), LABELS, reduction="none")
        assert losses.tolist() == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-6)
    assert seen == [torch.float32]


@dataclass
class Named:
    """Outputs as an object, which torch's pytree does not know."""

    logits: Tensor
    name: str = "a"


class Prediction(NamedTuple):
    logits: Tensor
    hidden: Any = None


WEIGHED = nn.CrossEntropyLoss(weight=torch.rand(5), reduction="none")
OUTPUTS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "a mapping": (lambda z: {"ids": LABELS, "logits": z}, lambda o: o["logits"]),
    "a mapping of its own": (lambda z: UserDict(scores=z), lambda o: o["scores"]),
    "nested": (lambda z: {"logits": [z]}, lambda o: o["logits"][0]),
    "a tuple": (lambda z: (LABELS, z), lambda o: o[1]),
    "a named tuple": (Prediction, lambda o: o.logits),
    "an object": (Named, lambda o: o.logits),
    "a namespace": (lambda z: SimpleNamespace(logits=z), lambda o: o.logits),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_weighted_criterion_takes_half_precision_of_any_structure(name: str) -> None:
    wrap, logits = OUTPUTS[name]
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        outputs = wrap(LOGITS.to(dtype))
        losses = row_losses(lambda o, t: WEIGHED(logits(o), t), outputs, LABELS)
        torch.testing.assert_close(losses, WEIGHED(LOGITS.to(dtype).float(), LABELS))
        assert logits(outputs).dtype == dtype  # the model's own are as they were


class Tokens(nn.Module):
    """Predicts tokens; its own loss is that of the next ones, or of the same ones."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.table, self.shift = nn.Embedding(10, 10), shift

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.table(input_ids)
        seen, following = logits[:, : 8 - self.shift], labels[:, self.shift :]
        loss = F.cross_entropy(seen.flatten(0, 1), following.flatten())
        return {"loss": loss, "logits": logits}


@pytest.mark.parametrize("loop", ["Trainer", "gate"])
def test_a_model_that_shifts_its_labels_needs_a_criterion(loop: str) -> None:
    ids = (torch.arange(8) + torch.arange(16)[:, None]) % 10
    labels = ids.where(ids != 3, -100)
    rows = [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]

    def step(shift: int, zero: bool = False, **options: Any) -> None:
        model = Tokens(shift)
        if zero:
            nn.init.zeros_(model.table.weight)
        if loop == "gate":
            Gate(0.5, **options)(model, {"input_ids": ids, "labels": labels})
            return
        data: Any = ConcatDataset([rows])  # type: ignore[arg-type, list-item]
        budget = {"epochs": 1, "batch_size": 8, "device": "cpu"}
        Trainer(model, data, data, **budget, **options).run()

    step(0)
    step(1, criterion=lambda outputs, batch: outputs["logits"].logsumexp(-1))
    words = r"the model shifts its labels, .* astkit.integrations.huggingface.causal_losses"
    for zero in (False, True):  # a head of zeros has the same loss with both labels
        with pytest.raises(ValueError, match=words):
            step(1, zero=zero)


def of(outputs: Any, targets: Any = LABELS, criterion: Any = cross_entropy_rows) -> Any:
    return lambda: row_losses(criterion, outputs, targets)


def labelled(label: int, *shape: int) -> Tensor:
    targets = torch.zeros(4, *shape, dtype=torch.int64)
    targets.view(-1)[2] = label
    return targets


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a mean": (of(LOGITS, criterion=nn.CrossEntropyLoss()), r"shape \[\] for 4 rows.*averag"),
    "a sum": (of(LOGITS, criterion=nn.CrossEntropyLoss(reduction="sum")), "reduction='none'"),
    "lost rows": (of(LOGITS, criterion=lambda o, t: ROWS[1:]), r"shape \[3\] for 4 rows"),
    "a number": (of(LOGITS, criterion=lambda o, t: 1.0), "returned type float for 4 rows: return"),
    "a mask of another shape": (
        of(LOGITS, criterion=lambda o, t: (ROWS, torch.ones(3))),
        r"mask of shape \[3\] for losses of shape \[4\]: give both the same shape",
    ),
    "outputs in a column": (
        of(torch.rand(4, 1), torch.rand(4), lambda o, t: (o - t).square()),
        r"shape \[4, 4\], .* shape \[4, 1\] and .* shape \[4\]: .* or outputs\.squeeze\(1\)",
    ),
    "outputs in a column, in a mapping": (
        of(
            {"logits": torch.rand(4, 1)},
            {"labels": torch.rand(4)},
            lambda o, t: (o["logits"] - t["labels"]).square(),
        ),
        r"shape \[4, 4\], .* shape \[4, 1\] and .* shape \[4\]: .* or outputs\.squeeze\(1\)",
    ),
    "targets with channels": (
        of(torch.rand(4, 2, 2), torch.rand(4, 1, 2, 2), lambda o, t: (o - t).abs()),
        r"losses of shape \[4, 4, 2, 2\], broadcast from",
    ),
    "None": (of(None), "model returned NoneType without logits or one loss per row"),
    "text": (of({"hidden": LOGITS}), "model returned dict without logits"),
    "three rows": (of(LOGITS[:3]), r"outputs of shape \[3, 5\] and targets of shape \[4\]"),
    "a mapping for a loss of tensors": (
        of({"logits": LOGITS}, criterion=nn.MSELoss(reduction="none")),
        r"a loss of tensors those .* loss\(outputs\['logits'\], targets\)",
    ),
    "no rows": (of(torch.tensor(1.0)), r"outputs of shape \[\] and targets of shape \[4\]"),
    "no labels": (of(LOGITS, {"x": LOGITS}), "mapping with keys x without labels: give the batch"),
    "another shape": (of(LOGITS, torch.zeros(4, 3)), r"targets of shape \[4, 3\]: .*\(.*\)"),
    "label 5": (of(LOGITS, labelled(5)), r"the .* labels that it expects \(.* 5 is out of bounds"),
    "token label 9": (of(torch.zeros(4, 5, 7), labelled(9, 7)), r"expects \(.* 9 is out of bounds"),
}


def test_what_gives_no_loss_a_row_is_refused() -> None:
    refused(*REFUSED.values())


def test_memory_that_runs_out_is_no_mismatch() -> None:
    def full(outputs: Tensor, targets: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        row_losses(full, LOGITS, LABELS)
