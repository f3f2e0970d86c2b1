"""Tables as data sets: labels, rows and columns that are left out, rows as inputs, objectives."""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader

from astkit import Table, Trainer
from astkit.comparison.samples import Samples
from astkit.datasets.facts import class_labels, row_groups, shared_rows
from astkit.datasets.loader import Loader
from tests.build import refused

ROWS = 60


def frame(rows: int = ROWS, seed: int = 0, **columns: object) -> pd.DataFrame:
    """A number, few words, many words and a price; ``columns`` are added or replace others."""
    draw = np.random.default_rng(seed)
    size, kind = draw.normal(50, 10, rows), draw.choice(["flat", "house"], rows)
    street = [f"{draw.choice(['north', 'south'])} {number}" for number in range(rows)]
    price = 2_000 * size + 5_000 * (kind == "flat") + draw.normal(0, 1, rows)
    made = {"size": size, "kind": kind, "street": street, "price": price}
    return pd.DataFrame(made).assign(**columns)


@pytest.mark.parametrize(
    ("values", "said", "task", "classes"),
    [
        ([0.5, 1, 2] * 20, None, "regression", ()),
        ([3, 1, 2] * 20, None, "classes", ("1", "2", "3")),
        (["b", "a", "10"] * 20, None, "classes", ("10", "a", "b")),
        ([10, 9, None] * 20, None, "classes", ("9", "10")),
        ([True, False, True] * 20, None, "classes", ("False", "True")),
        (pd.Categorical(np.arange(60) % 30 + 1), None, "classes", tuple(map(str, range(1, 31)))),
        (list(range(20)) * 3, None, "classes", tuple(map(str, range(20)))),
        ([row // 2 for row in range(ROWS)], None, "regression", ()),
        ([0, 1, 2] * 20, "regression", "regression", ()),
        ([0, 0.5, 1] * 20, "classes", "classes", ("0", "0.5", "1")),
    ],
)
def test_words_and_few_whole_numbers_are_classes(values, said, task, classes) -> None:
    table = Table(frame(price=values), label="price", task=said)
    assert (table.label.task, table.label.classes) == (task, classes)
    known = [value for value in values if value is not None]
    if task == "regression":
        assert table.values.tolist() == known
        assert table.labels is None
    else:
        assert [table.label.classes[code] for code in table.values] == list(map(str, known))
        assert class_labels(table).tolist() == table.values.tolist()


def test_what_cannot_be_predicted_is_refused() -> None:
    for values, options, words in (
        ([None] * ROWS, {}, "label 'price' has 0 different values"),
        (pd.date_range("2024", periods=ROWS), {}, "label 'price' holds dates"),
        (["a", "b"] * 30, {"task": "regression"}, "label 'price' holds words"),
        ([1, 2] * 30, {"task": "numbers"}, "task is 'numbers': give 'regression' or 'classes'"),
        (1e9 + np.arange(ROWS), {}, "which float32 does not resolve: subtract a constant"),
        ([f"w{row}" for row in range(101)], {}, "has 101 different values, more than 100 classes"),
        ([f"{row} (?)" for row in range(101)], {}, r"no numbers: '0 \(\?\)', '1 \(\?\)', '2 "),
    ):
        call = partial(Table, frame(len(values), price=values), label="price", **options)
        refused((call, words))


def test_names_of_columns_are_checked_with_the_file() -> None:
    with pytest.raises(ValueError, match="cannot be read") as caught:
        Table(frame(), label="prize", drop=["sise"], groups="owner")
    for name in ("prize", "owner", "sise"):
        assert f"- there is no column {name!r}: choose one of size, kind" in str(caught.value)
    refused(
        (lambda: Table(frame()), "label and like: give"),
        (lambda: Table(frame(), like=frame()), "like is a DataFrame: give a Table to be read as"),
    )


def test_copies_of_the_label_are_left_out_and_named() -> None:
    made = frame()
    codes = made["kind"].map({"flat": 0, "house": 1})
    made = made.assign(code=codes, sold=(made["price"] // 50_000), word=codes.map({0: "f", 1: "h"}))
    table = Table(made, label="kind")
    assert not {"code", "word"} & set(table.frame)
    assert "columns that hold the label 'kind', left out: code, word" in table.notes
    scaled = frame(cents=100 * frame()["price"] + 5, day=np.arange(ROWS))
    assert set(Table(scaled, label="price").frame) == {"size", "kind", "street", "day"}


def test_columns_that_add_up_to_the_label_are_left_out() -> None:
    """Bikes: ``casual + registered = bikers``."""
    draw = np.random.default_rng(0)
    made = frame(casual=draw.integers(0, 50, ROWS), registered=draw.integers(0, 300, ROWS))
    made["price"] = made["casual"] + made["registered"]
    assert set(Table(made, label="price").frame) == {"size", "kind", "street"}
    made["price"] = made["registered"] - made["casual"]
    assert set(Table(made, label="price").frame) == {"size", "kind", "street"}
    made["price"] += draw.normal(size=ROWS)  # another column with a value a row is no copy
    assert set(Table(made, label="price").frame) == {*made} - {"price"}


def test_empty_columns_and_rows_without_a_label_are_left_out() -> None:
    made = frame(empty=None)
    made.loc[[3, 5], "price"] = None
    table = Table(made, label="price", drop=["street"])
    assert set(table.frame) == {"size", "kind"}
    assert len(table) == ROWS - 2
    assert table.rows[:5].tolist() == [0, 1, 2, 4, 6]
    assert table.notes == [
        "2 rows without 'price': left out",
        "columns without a value, left out: empty",
    ]
    with pytest.raises(ValueError, match="no columns are left beside the label"):
        Table(frame()[["price"]].assign(copy=frame()["price"] * 2), label="price")


def test_a_frame_may_have_numbers_as_names() -> None:
    made = pd.DataFrame(np.random.default_rng(0).normal(size=(ROWS, 4)))
    assert set(Table(made, label=3, drop=[0], groups=1).frame) == {"2"}


def test_a_later_table_is_encoded_as_the_first(tmp_path: Path) -> None:
    train = Table(frame(), label="price")
    later = frame(5, seed=1).iloc[:, ::-1]
    later.loc[0, "kind"] = "castle"
    later.drop(columns="size").assign(extra=1).to_csv(tmp_path / "later.csv", index=False)
    test = Table(tmp_path / "later.csv", like=train)
    assert Table(frame(extra=1), like=Table(frame(extra=None), label="price")).notes == []
    assert test.width == train.width
    assert test.labelled
    assert test.notes[0] == f"{tmp_path / 'later.csv'} has further columns, left out: extra"
    assert test.notes[1] == "columns that are absent count as missing: size"
    said = "column 'kind' has words that no training row has, read as \"other\": 'castle'"
    assert said in test.notes
    again = Table(frame(), like=train)
    assert torch.equal(again.inputs(torch.arange(ROWS)), train.inputs(torch.arange(ROWS)))


def test_a_table_without_labels_has_all_its_rows() -> None:
    train = Table(frame(), label="price")
    for made in (frame(5).drop(columns="price"), frame(5, price=None)):
        test = Table(made, like=train)
        assert (len(test), test.labelled, test.labels) == (5, False, None)
        assert test.values.tolist() == [0] * 5
        assert test.notes == []


def test_classes_that_no_training_row_has_are_left_out() -> None:
    train = Table(frame(price=["a", "b"] * 30), label="price")
    test = Table(frame(6, price=["b", "c", "a", "d", None, "b"]), like=train)
    assert test.values.tolist() == [1, 0, 1]
    assert test.notes == [
        "1 row without 'price': left out",
        "classes that no training row has, left out with 2 of 6 rows: 'c', 'd'",
        *test.notes[2:],
    ]
    others = Table(frame(6, price=["A", "B"] * 3), like=train)
    assert not others.labelled
    assert others.notes[0] == "classes that no training row has, in 6 of 6 rows: 'A', 'B'"


def test_groups_keep_their_names_in_all_tables() -> None:
    names = [["u", "v", 7, None][row % 4] for row in range(ROWS)]
    train = Table(frame(owner=names), label="price", groups="owner")
    assert train.groups[:4].tolist() == ["u", "v", "7", "row 4"]
    assert "owner" not in train.frame
    assert len(row_groups(train).unique()) == 3 + ROWS // 4
    assert Table(frame(owner=names), like=train).groups[2] == "7"
    refused((lambda: Table(frame(), like=train), "there is no column 'owner' of groups"))


def test_rows_are_the_same_one_by_one_and_in_batches() -> None:
    made = frame()
    made.loc[4, ["size", "kind", "street"]] = None
    table = Table(made, label="price")
    rows = torch.tensor([4, 0, 4])
    inputs, values = table[rows]
    assert inputs.shape == (3, table.width)
    for place, row in enumerate(rows.tolist()):
        assert torch.equal(table[row][0], inputs[place])
        assert table[row][1] == values[place]
    batch = next(iter(Loader(table, ROWS, shuffle=False).batches(0)))
    for x, y in ((batch.x, batch.y), next(iter(DataLoader(table, batch_size=ROWS)))):
        assert torch.equal(x, table.inputs(torch.arange(ROWS)))
        assert torch.equal(y, table.values)
    part = table.take(rows)
    assert torch.equal(part[torch.arange(3)][0], inputs)
    assert (len(part), part.rows.tolist()) == (3, [4, 0, 4])
    with pytest.raises(IndexError):
        table[ROWS]


def test_samples_show_the_cells_of_a_row() -> None:
    made = frame(2, price=["a", "b"], day=[pd.Timestamp("2024-02-29"), None])
    table = Table(made, label="price")
    visits = torch.ones(1, 2, dtype=torch.int32), torch.tensor([[0.5, 0.1]])
    samples = Samples(*visits, table)
    expected = {"size": made["size"][0], "kind": made["kind"][0], "street": made["street"][0]}
    assert samples.show(0) == {**expected, "day": "2024-02-29 00:00:00"}
    assert samples.show(1)["day"] is None
    assert samples.classes == ["a", "b"]
    part = Samples(*(each[:, :1] for each in visits), torch.utils.data.Subset(table, [1]))
    assert part.show(0) == samples.show(1)


def test_rows_that_tables_share_are_equal_in_all_columns() -> None:
    train = Table(frame(), label="price")
    test = Table(frame().iloc[[3, 7]].assign(price=[frame()["price"][3], 0.0]), like=train)
    assert shared_rows(train, None, test) == {("train", "test"): 1}


def test_all_rows_are_a_matrix_whose_columns_have_names() -> None:
    made = frame(area=[None, 3.5] * 30)
    table = Table(made, label="price")
    whole = table.inputs(torch.arange(ROWS)).numpy()
    assert np.array_equal(table.matrix(), whole)
    trees = table.matrix(scaled=False)
    assert trees[:, :2] == pytest.approx(made[["size", "area"]].to_numpy("float32"), nan_ok=True)
    assert np.array_equal(trees[:, 2:], whole[:, 2:])
    names = ["size", "area", "area missing", *["kind"] * 3, *["street"] * 17]
    assert (table.names, table.width) == (names, len(names))
    assert np.array_equal(table.words("kind"), whole[:, 3:6])


def test_a_scikit_learn_transformer_may_encode() -> None:
    from sklearn.compose import make_column_transformer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    made = make_column_transformer((StandardScaler(), ["size"]), (OneHotEncoder(), ["kind"]))
    train = Table(frame(), label="price", encoder=made)
    assert not hasattr(made, "transformers_")  # a copy is fitted
    test = Table(frame(5, seed=1), like=train)
    mean, deviation = frame()["size"].mean(), frame()["size"].std(ddof=0)
    expected = (frame(5, seed=1)["size"] - mean) / deviation
    assert test.inputs(torch.arange(5))[:, 0].tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    assert (test.width, test.names) == (3, ["input 0", "input 1", "input 2"])
    assert np.array_equal(test.matrix(scaled=False), test.inputs(torch.arange(5)))
    with pytest.raises(ValueError, match="encoder gives missing or infinite numbers"):
        Table(frame(size=None, area=[None, 1.0] * 30), label="price", encoder=Plain())


class Plain:
    """A transformer that passes numbers through."""

    def fit_transform(self, columns: pd.DataFrame, _: object) -> np.ndarray:
        return columns[["area"]].to_numpy()


def test_a_regression_is_measured_in_the_unit_of_its_label() -> None:
    train = Table(frame(600), label="price", drop=["street"])
    torch.manual_seed(0)
    model = train.model()
    first = model(train.inputs(torch.arange(600)))
    assert first.shape == (600,)
    assert abs(first.mean() - train.values.mean()) < train.values.std()
    trainer = Trainer(model, train, train, epochs=40, **train.objective)
    trainer.run()
    outputs = model(train.inputs(torch.arange(600))).detach()
    rmse = (outputs - train.values).square().mean().sqrt().item()
    assert rmse < 0.2 * train.label.deviation
    # of batches of unequal size
    assert trainer.measure(trainer.validation).values()["RMSE"] == pytest.approx(rmse, rel=1e-3)


def test_a_model_of_ones_own_gets_the_unit() -> None:
    table = Table(frame(), label="price")
    model = table.in_units(lambda: torch.nn.Linear(table.width, 1))()
    torch.nn.init.zeros_(model[0].weight)
    torch.nn.init.ones_(model[0].bias)
    expected = table.label.mean + table.label.deviation
    assert model(table[torch.arange(2)][0]).tolist() == pytest.approx([expected] * 2)
    with pytest.raises(ValueError, match=r"gives \[2, 3\] for a regression of one number"):
        table.in_units(lambda: torch.nn.Linear(table.width, 3))()(table[torch.arange(2)][0])


def test_classes_have_the_usual_objective() -> None:
    table = Table(frame(price=["a", "b", "c"] * 20), label="price")
    assert table.objective == {}
    assert table.model()(table[torch.arange(2)][0]).shape == (2, 3)
    assert repr(table) == "Table(3 classes of price: 60 rows, 3 columns)"
