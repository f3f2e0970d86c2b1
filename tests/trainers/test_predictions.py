"""`Trainer.predict` says what a literal loop says, of every row in order, and changes nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from astkit import Loader, Table, Trainer, indexed, joined
from astkit.datasets import load
from tests import build
from tests.build import refused
from tests.trainers.worlds import in_world

ROWS = build.rows(50)
X, Y = ROWS.tensors


def trained(model: nn.Module, data: Any = ROWS, **options: Any) -> Trainer:
    trainer = Trainer(model, data, **{"epochs": 1, "device": "cpu", **options})
    trainer.run()
    return trainer


def literal(trainer: Trainer, x: Tensor = X) -> Tensor:
    """Outputs of a loop in plain torch."""
    before = trainer.model.training
    trainer.model.eval()
    with torch.no_grad():
        outputs = torch.cat([trainer.model(part) for part in x.split(16)])
    trainer.model.train(before)
    return outputs


def test_a_literal_loop_says_the_same_and_nothing_else_changes() -> None:
    trainer = trained(build.network(4, 3, 8, nn.BatchNorm1d(8), nn.Dropout()), batch_size=16)
    trainer.model.train()

    def state() -> list[Any]:
        values = [each.clone() for each in trainer.model.state_dict().values()]
        modes = [each.training for each in trainer.model.modules()]
        return [*values, modes, torch.get_rng_state(), np.random.get_state()[1]]

    expected, before = literal(trainer), state()
    flops, seen = trainer.ledger.flops.evaluation, trainer.ledger.samples.evaluated
    given: list[Any] = [ROWS, TensorDataset(X), X, [X[:20], X[20:]], DataLoader(ROWS, 7)]
    given += [joined(*(TensorDataset(*ROWS[part]) for part in (slice(30), slice(30, 50))))]
    given += [Loader(ROWS, batch_size=7, shuffle=False), DataLoader(indexed(ROWS), 50)]
    for data in given:
        torch.testing.assert_close(trainer.predict(data), expected, rtol=0, atol=1e-6)
        assert all(map(np.array_equal, state(), before))
    counts = trainer.ledger.samples
    assert (counts.trained, counts.evaluated - seen) == (50, 8 * 50)
    assert trainer.ledger.flops.evaluation - flops == 8 * 50 * 2 * (4 * 8 + 8 * 3)


class Varying(nn.Module):
    """Gives outputs of a chosen form, of sequences ``[rows, T, 1]``, whose length differs."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.layer, self.form = nn.Linear(1, 3), form

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Any:
        steps = self.layer(inputs)
        first = steps[:, 0]
        forms: dict[str, Any] = {
            "tuple": (first, {"mean": steps.mean(1), "none": None}),
            "logits": SimpleNamespace(logits=first, loss=None),
            "lengths": steps,
            "pair": [first, steps],
            "rows": [{"at": row} for row in steps],
            "batches": (steps.mean(), steps.transpose(0, 1)),
        }
        return first if self.training else forms[self.form]


@pytest.mark.parametrize("form", ["tuple", "logits", "lengths", "pair", "rows", "batches"])
def test_outputs_of_any_form_are_joined_by_rows(form: str) -> None:
    inputs = [torch.randn(n, length, 1) for n, length in ((4, 5), (2, 7))]
    batches = [{"inputs": x, "labels": torch.arange(len(x)) % 3} for x in inputs]
    trainer = Trainer(Varying(form), batches, epochs=1, device="cpu")
    steps = [trainer.model.layer(x).detach() for x in inputs]
    first, rows = torch.cat([each[:, 0] for each in steps]), [row for each in steps for row in each]
    found = trainer.predict([{"inputs": x} for x in inputs])  # which need no labels
    assert trainer.ledger.flops.evaluation == 2 * 3 * (4 * 8 + 2 * 8)  # texts count in eights
    expected: list[Any] = {"tuple": [first], "logits": [first], "pair": [first, *rows]}.get(
        form, rows
    )
    if form == "tuple":
        assert found[1]["none"] is None
        expected = [first, torch.cat([each.mean(1) for each in steps])]
        found = [found[0], found[1]["mean"]]
    elif form == "batches":
        expected = [*(each.mean() for each in steps), *(each.transpose(0, 1) for each in steps)]
        found = [*found[0], *found[1]]
    elif form == "pair":
        found = [found[0], *found[1]]
    else:
        found = [each["at"] for each in found] if form == "rows" else found
        found = [found] if form == "logits" else found
    torch.testing.assert_close(list(found), expected)


def test_what_has_no_row_for_each_prediction_is_refused() -> None:
    predict, stream = trained(build.network(4, 3)).predict, build.as_stream(ROWS)
    mixed = [list(range(25, 50)), list(range(25))]
    order, length = "shuffles, or draws rows by a sampler", "is a stream, whose length"
    refused(
        (lambda: predict(DataLoader(ROWS, 8, shuffle=True)), f"a DataLoader that {order}"),
        (lambda: predict(Loader(ROWS, 8)), f"a Loader that {order}"),
        (lambda: predict(DataLoader(ROWS, 8, sampler=SubsetRandomSampler(range(9)))), order),
        (lambda: predict(DataLoader(ROWS, batch_sampler=mixed)), order),
        (lambda: predict(DataLoader(ROWS, 8, drop_last=True)), "has drop_last"),
        (lambda: predict(Loader(ROWS, 8, shuffle=False, drop_last=True)), "has drop_last"),
        (lambda: predict(stream), length),
        (lambda: predict(DataLoader(stream, 8)), length),
        (lambda: predict(iter(DataLoader(ROWS, 8))), length),
        (lambda: predict(TensorDataset(X[:0])), "data is empty; pass"),
        (lambda: predict("rows.csv"), "are a str, and the training data are no Table"),
        (lambda: predict(pd.DataFrame({"a": [1.0]})), "are a DataFrame, and the training"),
        (lambda: predict(ROWS, probabilities=True), "no table of classes"),
    )


# --- tables ---


@pytest.mark.parametrize("held", ["table", "joined", "loader", "torch"])
def test_a_table_gets_every_row_in_the_unit_of_its_label(
    held: str, tmp_path: Path, capsys: Any
) -> None:
    table = Table(build.table(80, who=["a", "b"] * 40), "y", groups="who")
    more = Table(build.table(20, 1, who="c"), like=table)
    data: Any = {
        "table": table,
        "joined": joined(table, more),
        "loader": Loader(table, batch_size=16),
        "torch": DataLoader(table, batch_size=16, shuffle=True),
    }[held]
    trainer = trained(table.model(), data, **table.objective)
    later = build.table(40, 2)
    expected = literal(trainer, Table(later.assign(who="d"), like=table).inputs(torch.arange(40)))
    later.loc[::3, "y"] = np.nan
    later.to_csv(tmp_path / "later.csv", index=False)
    odd = later.assign(y="unknown", who="d", more=1)
    for given in (later, later.drop(columns="y"), tmp_path / "later.csv", odd):
        torch.testing.assert_close(trainer.predict(given), expected)
    assert "predict: the table has further columns, left out: more" in capsys.readouterr().out
    other = Table(build.table(40, 3), "y")
    refused(
        (lambda: trainer.predict(other), "read in another way than the training table"),
        (lambda: trainer.predict(other.inputs(slice(3))), "read in another way than the training"),
        (lambda: trainer.predict(later[:0]), "it has no rows"),
    )


def test_classes_are_their_words() -> None:
    frame = build.table(90)
    frame["y"] = pd.cut(frame["y"], 3, labels=["low", "middle", "high"]).astype(str)
    table = Table(frame, "y")
    trainer = trained(build.network(table.width, 3), table, lr=0.05, batch_size=8)
    logits = literal(trainer, table.inputs(torch.arange(90)))
    later = frame.assign(y="of no row")
    found = trainer.predict(later)
    assert found == [table.classes[each] for each in logits.argmax(1)]
    assert np.mean(np.array(found) == frame["y"]) > 0.5
    torch.testing.assert_close(trainer.predict(later, probabilities=True), logits.softmax(1))
    narrow = Trainer(build.network(table.width, 1), table, epochs=1, device="cpu")
    refused((lambda: narrow.predict(later), r"gives \[90, 1\] for 3 classes"))


def test_a_model_of_bikes_predicts_the_later_rows_as_they_come(tmp_path: Path) -> None:
    bikes = load("bikes")
    table = Table(bikes.train, label="bikers")
    trainer = trained(table.model(), table, lr=0.01, **table.objective)
    bikes.test.drop(columns="bikers").to_csv(tmp_path / "later.csv", index=False)
    error = trainer.predict(tmp_path / "later.csv").numpy() - bikes.test["bikers"].to_numpy()
    assert len(error) == len(bikes.test)
    measured = trainer.evaluate(Table(bikes.test, like=table))["loss"]
    assert measured == pytest.approx(float((error**2).mean()) / table.label.deviation**2)


def predicted() -> tuple[Tensor, int]:
    """Of 51 rows in batches of 25, the last of one row, as two processes divide them."""
    model: nn.Module = build.network(4, 3)
    if torch.distributed.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    trainer = Trainer(model, ROWS, epochs=1, batch_size=10, device="cpu")
    found = trainer.predict(Loader(build.rows(51), batch_size=25, shuffle=False))
    return found, trainer.ledger.samples.evaluated


def test_each_of_several_processes_returns_all_rows_in_order() -> None:
    ((expected, rows),) = in_world(1, predicted)
    found = in_world(2, predicted)
    assert rows == 51 == sum(each[1] for each in found)
    for values, _ in found:
        torch.testing.assert_close(values, expected)
