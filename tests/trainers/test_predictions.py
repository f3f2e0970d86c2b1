"""`Trainer.predict` says what a literal loop says, of every row in order, and changes nothing."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    SubsetRandomSampler,
    TensorDataset,
)

from astkit import Loader, Table, TrainConfig, Trainer, indexed, joined
from astkit.datasets import load
from tests import build
from tests.build import refused
from tests.trainers.worlds import in_world

ROWS = build.rows(50)
X = ROWS.tensors[0]


def trained(model: nn.Module | None = None, data: Any = ROWS, **options: Any) -> Trainer:
    options = {"epochs": 1, "batch_size": 16, "device": "cpu", **options}
    if model is None:
        model = build.network(4, 3, 8, nn.BatchNorm1d(8), nn.Dropout())
    trainer = Trainer(model, data, **options)
    trainer.run()
    return trainer


def state(trainer: Trainer) -> list[Any]:
    values = [each.clone() for each in trainer.model.state_dict().values()]
    modes = [each.training for each in trainer.model.modules()]
    return [*values, modes, torch.get_rng_state(), np.random.get_state()[1]]


def literal(trainer: Trainer, x: Tensor = X, size: int = 128) -> Tensor:
    """Outputs of a loop in plain torch."""
    modes = trainer.model.training
    trainer.model.eval()
    with torch.no_grad():
        outputs = torch.cat([trainer.model(part) for part in x.split(size)])
    trainer.model.train(modes)
    return outputs


def test_a_literal_loop_says_the_same_and_nothing_else_changes() -> None:
    trainer = trained()
    trainer.model.train()
    flops, rows = trainer.ledger.flops.evaluation, trainer.ledger.samples.evaluated
    expected, before = literal(trainer), state(trainer)
    for data in (
        ROWS,
        TensorDataset(X),
        X,
        joined(*(TensorDataset(*ROWS[part]) for part in (slice(30), slice(30, 50)))),
        ConcatDataset([TensorDataset(X[:30]), TensorDataset(X[30:])]),
        Loader(ROWS, batch_size=7, shuffle=False),
        DataLoader(ROWS, batch_size=7),
        DataLoader(indexed(ROWS), batch_size=50),
        [X[:20], X[20:]],
    ):
        found = trainer.predict(data)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        assert all(map(np.array_equal, state(trainer), before))
    assert torch.equal(trainer.predict(ROWS), expected)
    counts = trainer.ledger.samples
    assert counts.evaluated - rows == 10 * 50
    assert trainer.ledger.flops.evaluation - flops == pytest.approx(10 * 50 * 2 * (4 * 8 + 8 * 3))
    assert counts.trained == 50


class Varying(nn.Module):
    """Gives outputs of a chosen form, of sequences ``[rows, T, 1]``, whose length differs."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.layer, self.form = nn.Linear(1, 3), form

    def forward(self, x: Tensor) -> Any:
        steps = self.layer(x)
        first = steps[:, 0]
        forms: dict[str, Callable[[], Any]] = {
            "tuple": lambda: (first, {"mean": steps.mean(1), "none": None}),
            "logits": lambda: SimpleNamespace(logits=first, loss=None),
            "mapping": lambda: {"logits": first, "steps": steps},
            "lengths": lambda: steps,
            "pairs": lambda: [first, steps],
            "rows": lambda: [{"at": row} for row in steps],
            "batches": lambda: (first, steps.mean(), steps.transpose(0, 1)),
        }
        return first if self.training else forms[self.form]()


@pytest.mark.parametrize(
    "form", ["tuple", "logits", "mapping", "lengths", "pairs", "rows", "batches"]
)
def test_outputs_of_any_form_are_joined_by_rows(form: str) -> None:
    batches = [(torch.randn(n, length, 1), torch.arange(n) % 3) for n, length in ((4, 5), (2, 7))]
    trainer = Trainer(Varying(form), batches, epochs=1, criterion=_loss, device="cpu")
    steps = [trainer.model.layer(x).detach() for x, _ in batches]
    first, rows = torch.cat([each[:, 0] for each in steps]), [row for each in steps for row in each]
    found = trainer.predict(batches)
    if form == "tuple":
        assert isinstance(found, tuple)
        expected: list[Any] = [first, torch.cat([each.mean(1) for each in steps])]
        parts = [found[0], found[1]["mean"]]
        assert found[1]["none"] is None
    elif form in ("logits", "mapping"):
        parts, expected = [found], [first]
    elif form == "pairs":
        parts, expected = [found[0], *found[1]], [first, *rows]
    elif form == "batches":
        parts = [found[0], *found[1], *found[2]]
        expected = [first, *(s.mean() for s in steps), *(s.transpose(0, 1) for s in steps)]
    else:
        parts = [each["at"] for each in found] if form == "rows" else found
        expected = rows
    assert len(parts) == len(expected)
    for one, other in zip(parts, expected, strict=True):
        torch.testing.assert_close(one, other)


def _loss(outputs: Any, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, y, reduction="none")


class Named(nn.Module):
    """Takes what a tokenizer gives, with or without labels, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Any:
        return SimpleNamespace(logits=self.layer(inputs))


def test_rows_of_keywords_need_no_labels() -> None:
    items = [{"inputs": x, "labels": y} for x, y in ROWS]
    trainer = trained(
        Named(), build.as_dataset(items), criterion=lambda o, b: _loss(o.logits, b["labels"])
    )
    unlabelled = build.as_dataset([{"inputs": x} for x in X])
    expected = trainer.model(X).logits.detach()
    before = trainer.ledger.flops.evaluation
    torch.testing.assert_close(trainer.predict(unlabelled), expected)
    assert trainer.ledger.flops.evaluation - before == 50 * 2 * 4 * 3
    assert not trainer.ledger.uncounted


def test_a_loader_gives_its_generator_back() -> None:
    """A DataLoader draws the seeds of its workers from it, also of rows in order."""

    class Own(DataLoader[Any]):
        def __iter__(self) -> Any:
            return super().__iter__()

    own, trainer = torch.Generator().manual_seed(3), trained()
    before = own.get_state()
    found = trainer.predict(Own(ROWS, 10, generator=own))
    torch.testing.assert_close(found, literal(trainer))
    assert torch.equal(own.get_state(), before)


def test_what_has_no_row_for_each_prediction_is_refused() -> None:
    trainer = trained()
    stream = build.as_stream(ROWS)
    mixed = [list(range(25, 50)), list(range(25))]
    refused(
        (lambda: trainer.predict(DataLoader(ROWS, 8, shuffle=True)), "DataLoader that shuffles"),
        (lambda: trainer.predict(Loader(ROWS, 8)), "Loader that shuffles"),
        (lambda: trainer.predict(trainer.train_data), "Loader that shuffles"),
        (
            lambda: trainer.predict(DataLoader(ROWS, 8, sampler=SubsetRandomSampler(range(9)))),
            "draws rows by a SubsetRandomSampler",
        ),
        (lambda: trainer.predict(DataLoader(ROWS, batch_sampler=mixed)), "draws rows by a list"),
        (lambda: trainer.predict(DataLoader(ROWS, 8, drop_last=True)), "has drop_last"),
        (lambda: trainer.predict(Loader(ROWS, 8, shuffle=False, drop_last=True)), "has drop_last"),
        (lambda: trainer.predict(stream), "is a stream, whose length"),
        (lambda: trainer.predict(DataLoader(stream, 8)), "is a stream, whose length"),
        (lambda: trainer.predict(iter(DataLoader(ROWS, 8))), "is a stream, whose length"),
        (lambda: trainer.predict(TensorDataset(X[:0])), "data is empty; pass"),
        (lambda: trainer.predict("rows.csv"), "are a str, and the training data no Table"),
        (lambda: trainer.predict(pd.DataFrame({"a": [1.0]})), "are a DataFrame, and the training"),
        (lambda: trainer.predict(ROWS, probabilities=True), "no table of classes"),
    )


# --- tables ---


def model_of(data: Any, **options: Any) -> Trainer:
    table = data if isinstance(data, Table) else getattr(data, "data", None) or data.dataset
    torch.manual_seed(0)
    return trained(table.model(), data, lr=0.01, **{**table.objective, **options})


@pytest.mark.parametrize("held", ["table", "joined", "loader", "torch"])
def test_a_table_gets_every_row_in_the_unit_of_its_label(
    held: str, tmp_path: Any, capsys: Any
) -> None:
    frame, more = build.table(80, who=["a", "b"] * 40), build.table(20, 1, who=["c"] * 20)
    table = Table(frame, "y", groups="who")
    data: Any = {
        "table": table,
        "joined": joined(table, Table(more, like=table)),
        "loader": Loader(table, batch_size=16),
        "torch": DataLoader(table, batch_size=16, shuffle=True),
    }[held]
    trainer = model_of(data, batch_size=None if held in ("loader", "torch") else 16)
    later = build.table(40, 2)
    expected = literal(trainer, Table(later.assign(who="d"), like=table).inputs(torch.arange(40)))
    later.loc[::3, "y"] = np.nan
    later.to_csv(tmp_path / "later.csv", index=False)
    odd = later.assign(y="unknown", who="d", more=1)
    for given in (later, later.drop(columns="y"), tmp_path / "later.csv", odd):
        found = trainer.predict(given)
        assert found.shape == (40,)
        torch.testing.assert_close(found, expected)
    assert "predict: the table has further columns, left out: more" in capsys.readouterr().out
    other = Table(build.table(40, 3), "y")
    refused(
        (lambda: trainer.predict(other), "read in another way than the training table"),
        (lambda: trainer.predict(later[:0]), "it has no rows"),
        (lambda: trainer.predict(table.take(torch.arange(0))), "data is empty; pass"),
    )


@pytest.mark.parametrize("outputs", [3, 2, 1])
def test_classes_are_their_words(outputs: int) -> None:
    frame = build.table(90)
    words = ["low", "middle", "high"][: max(2, outputs)]
    frame["y"] = pd.cut(frame["y"], len(words), labels=words).astype(str)
    table = Table(frame, "y")
    options: dict[str, Any] = {}
    model: nn.Module = table.model()
    if outputs == 1:  # a logit of the second class
        model = nn.Linear(table.width, 1)
        binary = nn.BCEWithLogitsLoss(reduction="none")
        options["criterion"] = lambda said, y: binary(said.squeeze(1), y.float())
    trainer = trained(model, table, lr=0.05, **options)
    later = frame.assign(y="of no row")
    logits = literal(trainer, table.inputs(torch.arange(90)))
    if outputs == 1:
        logits = torch.cat([torch.zeros(90, 1), logits], 1)
    found = trainer.predict(later)
    assert found == [table.classes[each] for each in logits.argmax(1)]
    assert np.mean(np.array(found) == frame["y"]) > 0.5
    shares = trainer.predict(later, probabilities=True)
    torch.testing.assert_close(shares, logits.softmax(1))


def test_a_model_of_bikes_predicts_the_later_rows_as_they_come(tmp_path: Any) -> None:
    bikes = load("bikes")
    table = Table(bikes.train, label="bikers")
    config = TrainConfig(lr=0.01)
    trainer = Trainer(table.model(), table, epochs=3, config=config, **table.objective)
    trainer.run()
    path = tmp_path / "later.csv"
    bikes.test.drop(columns="bikers").to_csv(path, index=False)
    found = trainer.predict(path)
    assert len(found) == len(bikes.test)
    error = found.numpy() - bikes.test["bikers"].to_numpy()
    assert np.sqrt((error**2).mean()) < bikes.test["bikers"].std()
    measured = trainer.evaluate(Table(bikes.test, like=table))
    assert measured["loss"] == pytest.approx(float((error**2).mean()) / table.label.deviation**2)


def predicted() -> tuple[Tensor, int]:
    """Of 51 rows in batches of 25, the last of one row, as two processes divide them."""
    model: nn.Module = build.network(4, 3)
    if torch.distributed.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    trainer = Trainer(model, ROWS, epochs=1, batch_size=10, device="cpu")
    data = Loader(build.rows(51), batch_size=25, shuffle=False)
    return trainer.predict(data), trainer.ledger.samples.evaluated


def test_each_of_several_processes_returns_all_rows_in_order() -> None:
    ((expected, rows),) = in_world(1, predicted)
    found = in_world(2, predicted)
    assert rows == 51 == sum(each[1] for each in found)
    for values, _ in found:
        torch.testing.assert_close(values, expected)
