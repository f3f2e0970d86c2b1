"""Groups, class shares and suspects of recorded visits equal values found by hand."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler, TensorDataset

from astkit import indexed
from astkit.comparison.samples import Samples, explorer, together
from astkit.datasets import Images, Loader
from astkit.datasets.facts import class_labels
from tests.build import refused

NAN = float("nan")
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
LOSSES = torch.tensor([[0.2, 9.0, 0.4, 3.0, NAN, 0.2], [0.1, 12.0, NAN, 2.0, NAN, 0.1]])


@pytest.fixture
def trained():
    """Rows: selected often, always, once, once but hard, never, sometimes."""
    counts = torch.zeros(8, 6, dtype=torch.int32)
    counts[2:6, 0] = 1
    counts[:, 1] = 2
    counts[0, 2] = 1
    counts[7, 3] = 1
    counts[2:5, 5] = 1
    return counts


@pytest.fixture
def images():
    pixels = torch.arange(6 * 3 * 5 * 4).view(6, 3, 5, 4).to(torch.uint8)
    return Images(pixels, LABELS, ("cat", "<dog>", "cow"), "animals")


def test_groups_are_those_found_by_hand(trained):
    samples = Samples(trained, LOSSES)
    assert samples.total.tolist() == [4, 16, 1, 1, 0, 3]
    assert {name: rows.tolist() for name, rows in samples.groups.items()} == {
        "most selected": [1, 0, 5, 3, 2],  # of rows 2 and 3 the one with the higher loss is first
        "least selected": [2, 3, 5, 0, 1],
        "never selected": [4],
    }
    even = Samples(torch.ones(8, 6, dtype=torch.int32), LOSSES).groups
    assert [len(rows) for rows in even.values()] == [0, 0, 0]


def test_class_shares_sum_over_the_rows_of_a_class(trained, images):
    shares = Samples(trained, LOSSES, images).class_shares()
    assert list(shares.columns) == ["cat", "<dog>", "cow"]
    assert shares.loc["all rows"].tolist() == pytest.approx([1 / 3] * 3)
    assert shares.loc["part 1"].tolist() == pytest.approx([0, 2 / 3, 1 / 3])
    assert shares.loc["part 3"].tolist() == pytest.approx([1 / 4, 2 / 4, 1 / 4])
    some = DataLoader(indexed(images), sampler=SubsetRandomSampler([5, 4]))  # of the same six rows
    assert Samples(trained, LOSSES, some).class_shares().equals(shares)


def test_ignored_labels_are_in_no_class_and_class_names_may_be_an_array(trained, images):
    some = LABELS.where(LABELS > 0, -100)
    data: Any = TensorDataset(images.images, some)
    data.labels, data.classes = some, np.array(images.classes)
    samples = Samples(trained, LOSSES, data)
    shares = samples.class_shares()
    assert shares.loc["all rows"].tolist() == pytest.approx([0, 1 / 2, 1 / 2])
    assert shares.loc["part 3"].tolist() == pytest.approx([0, 2 / 3, 1 / 3])
    assert samples.frame([0, 1])["label"].tolist() == ["–", "<dog>"]
    assert Samples(trained[:, :3], LOSSES[:, :3], Subset(images, range(3))).label(1) == "<dog>"


def test_suspects_have_the_highest_loss_above_the_average_of_the_same_part(trained, images):
    predicted = torch.tensor([0, 2, 2, -1, 1, 2], dtype=torch.int16)
    samples = Samples(trained, LOSSES, images, predicted=predicted)
    usual = [12.8 / 5, 14.2 / 4]
    assert samples.loss.tolist() == pytest.approx(
        [
            *(0.15 - sum(usual) / 2, 10.5 - sum(usual) / 2, 0.4 - usual[0]),
            *(2.5 - sum(usual) / 2, NAN, 0.15 - sum(usual) / 2),
        ],
        nan_ok=True,
    )
    # row 2 was seen early only, when all losses were high, and is no suspect for that
    suspects = samples.suspects(3)
    assert suspects.rows.tolist() == [1, 3, 2]
    table = suspects.table()
    assert table["label"].tolist() == ["<dog>", "cat", "cow"]
    assert table["predicted"].tolist() == ["cow", "–", "cow"]
    # row 4 has no loss, so it is never suspected
    many = samples.suspects(50)
    assert (sorted(many.rows.tolist()), many.kept.tolist()) == ([0, 1, 2, 3, 5], [4])
    one = Samples(trained, LOSSES.where(LOSSES != 12, torch.inf))  # diverged at one row
    assert one.suspects(2).rows.tolist() == [1, 3]


def test_suspects_are_written_and_dropped(trained, images, tmp_path):
    loader = DataLoader(indexed(images), batch_size=2)
    suspects = Samples(trained, LOSSES, loader).suspects(2)
    written = pd.read_csv(suspects.to_csv(tmp_path / "suspects.csv"))
    assert written["row"].tolist() == [1, 3]
    assert list(written.columns) == ["row", "trained", "loss", "label"]
    rest = suspects.drop()
    assert len(rest) == 4
    assert torch.equal(rest[1][0], images[2][0])
    assert class_labels(rest).tolist() == [0, 2, 1, 2]
    assert Loader(rest, 2).num_samples == 4


def test_what_is_shown_is_what_the_data_hold(trained, images):
    samples = Samples(trained, LOSSES, images, name="<gate>")
    shown = samples._repr_html_()
    wanted = ("&lt;gate&gt;", "&lt;dog&gt;", "never selected: 1", "data:image/png;base64,")
    assert all(each in shown for each in wanted)
    assert "data:image/png;base64," in samples.suspects(2)._repr_html_()

    rows = [({"age": 30 + row, "name": "<script>never"}, 0) for row in range(6)]
    for each in (Samples(trained, LOSSES, rows), Samples(trained, LOSSES, rows).suspects(3)):
        shown = each._repr_html_()
        assert "data:image" not in shown
        assert "<script>" not in shown
        assert re.search(r"<th>age</th>\s*<th>name</th>", shown)

    vectors = [(torch.arange(20.0) + row, 0) for row in range(6)]
    table = Samples(trained, LOSSES, vectors).table(2)
    assert list(table.columns) == ["trained", "loss", *(f"x{place}" for place in range(12)), "..."]
    assert table.loc[("most selected", 1), "x7"] == 8
    assert [group for group, _ in table.index].count("most selected") == 2

    pictures = [{"image": Image.new("L", (4, 4), 9), "label": 0}] * 6
    assert "data:image" in Samples(trained, LOSSES, pictures)._repr_html_()
    clash = Samples(trained, LOSSES, [{"trained": "own", "age": 1}] * 6).table(1)
    assert list(clash.columns) == ["trained", "loss", "age"]
    assert clash.loc[("most selected", 1), "trained"] == 16

    # without a group, rows stay whole numbers; what torch cannot read is shown as text
    odd = Samples(torch.tensor([[3, 1, 1, 1, 1, 1]] * 8), LOSSES, [(object(), 0)] * 6)
    assert odd.table(2).index.get_level_values("row").dtype == np.int64
    assert "object object" in odd._repr_html_()

    tokens = [{"ids": torch.arange(9), "labels": row} for row in range(6)]
    shown = Samples(trained, LOSSES, tokens, show=lambda row: f"text {row} <i>")._repr_html_()
    assert "text 1 &lt;i&gt;" in shown
    assert "never selected" in Samples(trained, LOSSES)._repr_html_()
    even = Samples(torch.ones(8, 6, dtype=torch.int32), LOSSES, images)._repr_html_()
    assert "data:image" not in even


def test_seeds_are_summed_and_their_losses_averaged(trained):
    later = LOSSES + torch.tensor([[0.0], [1.0]])
    runs = [
        {"trained": trained, "losses": losses, "predicted": torch.tensor(classes)}
        for losses, classes in ((LOSSES, [0, 1]), (later, [0, 2]), (later, [1, 2]))
    ]
    all_runs = together(runs)
    assert torch.equal(all_runs["trained"], 3 * trained)
    torch.testing.assert_close(
        all_runs["losses"], LOSSES + torch.tensor([[0.0], [2 / 3]]), equal_nan=True
    )
    assert all_runs["predicted"].tolist() == [0, 2]
    assert "predicted" not in together([*runs, {"trained": trained, "losses": later}])


def test_wrong_arguments_give_one_sentence(trained, images):
    samples, shown = Samples(trained, LOSSES), Samples(trained, LOSSES, images)
    refused(
        (samples.class_shares, "no class labels: give them an attribute labels"),
        (lambda: samples.suspects(1).drop(), "a loaded comparison has no training data"),
        (lambda: shown.picture(0), "images holds no image"),
        (lambda: Samples(trained, torch.full_like(LOSSES, NAN)).suspects(2), "no row has a loss"),
    )


def test_an_explorer_holds_the_first_of_each_group_of_each_method(trained, images):
    losses = torch.cat([LOSSES] * 4)
    methods = {
        "auto": Samples(trained, losses, images, name="auto"),
        "dense": Samples(torch.ones(8, 6, dtype=torch.int32), losses, images, name="dense"),
    }
    content = explorer(methods).content
    assert [sample["row"] for sample in content["samples"]] == list(range(6))
    assert [sample["label"] for sample in content["samples"]][:2] == ["cat", "<dog>"]
    assert all(sample["picture"].startswith("data:image/png") for sample in content["samples"])
    auto, dense = content["methods"]
    assert np.transpose(auto["counts"]).tolist() == trained.tolist()
    assert auto["losses"][4] == [None] * 8
    assert auto["groups"]["never selected"] == [4]
    assert auto["groups"]["suspected wrong labels"][0] == 1
    assert dense["groups"]["most selected"] == []
    few = explorer(methods, most=3).content
    rows = [sample["row"] for sample in few["samples"]]
    assert len(rows) == 3
    assert {1, 2} <= set(rows)  # the most and the least selected
    assert all(place < 3 for places in few["methods"][0]["groups"].values() for place in places)
