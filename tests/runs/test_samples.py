"""Groups, class shares, overlap and audit of recorded visits equal values found by hand."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.metrics import average_precision_score
from torch.utils.data import DataLoader

from astkit import Gate, Trainer, indexed, models
from astkit.datasets import Images, Loader, split
from astkit.datasets.conditions import condition
from astkit.runs.audit import audit
from astkit.runs.comparison import Comparison
from astkit.runs.samples import Samples, together
from astkit.runs.visits import Visits
from astkit.trainers import GatedStep, TrainConfig

NAN = float("nan")
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
LOSSES = torch.tensor([0.1, 12.0, 0.2, 2.0, NAN, 0.1])


@pytest.fixture
def trained():
    """Rows: learned late, always, never after the first part, once but hard, never, learned."""
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


def lists(groups):
    return {name: rows.tolist() for name, rows in groups.items()}


def test_groups_are_those_found_by_hand(trained):
    samples = Samples(trained, LOSSES, labels=LABELS)
    assert samples.total.tolist() == [4, 16, 1, 1, 0, 3]
    assert lists(samples.groups) == {
        "most selected": [1, 0, 5, 3, 2],  # of rows 2 and 3 the one with the higher loss is first
        "least selected": [2, 3, 5, 0, 1],
        "never selected": [4],
        "persistently high loss": [1],  # the quartiles are 0.1 and 2, so the inner fence is 4.85
        "newly learned": [0, 5],  # the mean of parts 3 to 6 is 15 / 6, the median loss 0.2
    }


def test_a_loss_is_high_beyond_a_uniform_guess_and_the_fences_of_tukey():
    trained = torch.ones(8, 9, dtype=torch.int32)
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2])  # ln 3 = 1.0986
    low = torch.tensor([0.1, 0.2, 0.1, 0.2, 0.1, 0.2, 1.09, 1.11, NAN])
    assert Samples(trained, low, labels=labels).likely_mislabelled.tolist() == [7]
    # quartiles 2 and 6: inner fence 12, outer fence 18
    wide = torch.tensor([1.0, 2.0, 2.0, 4.0, 6.0, 6.0, 13.0, NAN, 1.0])
    quartiles = wide.nanquantile(torch.tensor([0.25, 0.75])).tolist()
    inner, outer = (quartiles[1] + k * (quartiles[1] - quartiles[0]) for k in (1.5, 3))
    assert 6 < inner < 13 < outer
    assert Samples(trained, wide, labels=labels).likely_mislabelled.tolist() == [6]
    assert Samples(trained, wide).likely_mislabelled.tolist() == []
    wide[6] = outer + 0.1
    assert Samples(trained, wide).likely_mislabelled.tolist() == [6]
    once = trained.clone()
    once[1:, 6] = 0  # in one part of the budget only: not persistent
    assert Samples(once, wide).likely_mislabelled.tolist() == []
    assert Samples(trained, torch.full((9,), NAN)).likely_mislabelled.tolist() == []
    groups = Samples(trained, wide, labels=labels).groups
    assert len(groups["most selected"]) == len(groups["least selected"]) == 0  # all equally often


def test_overlap_is_the_jaccard_index_of_the_most_selected():
    counts = torch.arange(20, 0, -1, dtype=torch.int32).expand(8, 20)
    losses = torch.zeros(20)
    first, *shifted = (Samples(counts.roll(by, 1), losses) for by in range(3))
    assert [first.overlap(each) for each in (first, *shifted)] == [1, pytest.approx(1 / 3), 0]


def test_class_shares_sum_over_the_rows_of_a_class(trained, images):
    shares = Samples(trained, LOSSES, images).class_shares()
    assert list(shares.columns) == ["cat", "<dog>", "cow"]
    assert shares.loc["all rows"].tolist() == pytest.approx([1 / 3] * 3)
    assert shares.loc["part 1"].tolist() == pytest.approx([0, 2 / 3, 1 / 3])
    assert shares.loc["part 3"].tolist() == pytest.approx([1 / 4, 2 / 4, 1 / 4])
    assert shares.loc["part 8"].tolist() == pytest.approx([1 / 3, 2 / 3, 0])


def test_a_csv_holds_every_row_with_its_counts_and_groups(trained, images, tmp_path):
    path = Samples(trained, LOSSES, images).to_csv(tmp_path / "samples.csv")
    frame = pd.read_csv(path)
    assert frame["row"].tolist() == list(range(6))
    assert frame["label"].tolist()[:2] == ["cat", "<dog>"]
    assert frame["trained"].tolist() == [4, 16, 1, 1, 0, 3]
    parts = frame[[f"part {part}" for part in range(1, 9)]].to_numpy()
    assert np.array_equal(parts, trained.T)
    np.testing.assert_allclose(frame["loss"], LOSSES, rtol=1e-5)
    assert frame.index[frame["newly learned"]].tolist() == [0, 5]
    assert frame.index[frame["never selected"]].tolist() == [4]


def test_samples_are_displayed_as_what_the_data_hold(trained, images):
    shown = Samples(trained, LOSSES, images, name="<gate>")._repr_html_()
    assert "&lt;gate&gt;" in shown
    assert "&lt;dog&gt;" in shown
    assert "persistently high loss: 1" in shown
    assert "data:image/png;base64," in shown

    rows = [({"age": 30 + row, "name": "<script>never"}, 0) for row in range(6)]
    shown = Samples(trained, LOSSES, rows)._repr_html_()
    assert "data:image" not in shown
    assert "<script>" not in shown
    assert re.search(r"<th>age</th>\s*<th>name</th>", shown)

    vectors = [(torch.arange(20.0) + row, 0) for row in range(6)]
    table = Samples(trained, LOSSES, vectors).table(2)
    assert list(table.columns) == ["trained", "loss", *(f"x{place}" for place in range(8))]
    assert table.loc[("most selected", 1), "x7"] == 8
    assert [group for group, _ in table.index].count("most selected") == 2

    pictures = [{"image": Image.new("L", (4, 4), 9), "label": 0}] * 6
    assert "data:image" in Samples(trained, LOSSES, pictures)._repr_html_()
    waves = [(torch.ones(2, 4, 9), 0)] * 6  # neither 1 nor 3 channels
    assert "data:image" not in Samples(trained, LOSSES, waves)._repr_html_()
    clash = Samples(trained, LOSSES, [{"trained": "own", "age": 1}] * 6).table(1)
    assert list(clash.columns) == ["trained", "loss", "age"]
    assert clash.loc[("most selected", 1), "trained"] == 16

    tokens = [{"ids": torch.arange(9), "labels": row} for row in range(6)]
    shown = Samples(trained, LOSSES, tokens, show=lambda row: f"text {row} <i>")._repr_html_()
    assert "text 1 &lt;i&gt;" in shown
    assert "class" not in Samples(trained, LOSSES).table()
    assert "never selected" in Samples(trained, LOSSES)._repr_html_()


def test_empty_groups_are_an_empty_table_without_a_picture(images):
    even = torch.ones(8, 6, dtype=torch.int32)  # dense training, in which no loss is high
    samples = Samples(even, torch.full((6,), 0.1), images)
    assert not any(lists(samples.groups).values())
    table = samples.table()
    assert (len(table), list(table.columns)) == (0, ["trained", "loss", "label"])
    shown = samples._repr_html_()
    assert "<th>trained</th>" in shown
    assert "data:image" not in shown


def test_data_may_be_a_loader(trained, images):
    loaders = Loader(images), DataLoader(indexed(images), batch_size=2)
    for data in loaders:
        samples = Samples(trained, LOSSES, data)
        assert samples.data is images
        assert samples.class_shares().columns[0] == "cat"


def test_seeds_are_summed_and_their_losses_averaged(trained):
    later = torch.tensor([0.3, NAN, 0.2, 4.0, NAN, 0.1])
    both = together([{"trained": trained, "losses": LOSSES}, {"trained": trained, "losses": later}])
    assert torch.equal(both["trained"], 2 * trained)
    expected = torch.tensor([0.2, 12.0, 0.2, 3.0, NAN, 0.1])
    torch.testing.assert_close(both["losses"], expected, equal_nan=True)


def test_a_comparison_shows_the_samples_of_an_arm_over_its_seeds(trained, images, tmp_path):
    entries = [
        {"policy": "gate(0.25)", "seed": seed, "visits": f"{seed}.safetensors"} for seed in (0, 3)
    ]
    for entry in entries:
        counts = trained * (1 + entry["seed"])
        save_file({"trained": counts, "losses": LOSSES}, tmp_path / entry["visits"])
    found = {"entries": entries, "metric": "accuracy", "higher": True, "notes": [], "pilot": None}
    report = Comparison({**found, "settings": {}, "stamp": {}}, tmp_path, Loader(images))
    samples = report.samples("gate(0.25)", show="row {}".format)
    assert samples.total.tolist() == [20, 80, 5, 5, 0, 15]
    assert samples.data is images
    assert str(samples).startswith("gate(0.25), 6 rows; most selected: 5")
    assert samples.table(1)["text"].tolist()[0] == "row 1"
    swapped = report.samples("gate(0.25)", labels=LABELS.flip(0))
    assert swapped.class_shares().loc["part 8"].tolist() == pytest.approx([0, 2 / 3, 1 / 3])
    wrong = torch.tensor([False, True, False, False, False, False])
    assert report.audit("gate(0.25)", wrong).precision == 1
    with pytest.raises(ValueError, match=r"no arm 'gate' .*choose one of \[\('gate\(0.25\)', 0\)"):
        report.samples("gate")


def test_an_audit_by_hand(trained):
    wrong = torch.tensor([False, True, False, True, True, False])
    found = audit(trained, LOSSES, wrong)  # by loss: rows 1, 3, 2, 0 and 5, then 4
    assert (found.flagged, found.found, found.wrong, found.rows) == (3, 2, 3, 6)
    assert (found.precision, found.chance) == (2 / 3, 1 / 2)
    assert found.average_precision == pytest.approx((1 + 1 + 3 / 6) / 3)
    assert found.training_share == pytest.approx(17 / 25)
    assert "3 of 6 rows flagged: precision 66.7% (chance 50.0%), average" in str(found)


def test_average_precision_is_that_of_scikit_learn():
    random = np.random.default_rng(0)
    losses = torch.from_numpy(random.normal(size=300))
    wrong = torch.from_numpy(random.random(300) < 0.1)
    found = audit(torch.zeros(8, 300, dtype=torch.int32), losses + wrong, wrong)
    assert found.average_precision == pytest.approx(
        average_precision_score(wrong, losses + wrong), abs=1e-9
    )
    assert found.training_share == 0  # nothing was trained on


def test_wrong_arguments_give_one_sentence(trained, images):
    wrong = torch.zeros(6, dtype=torch.bool)
    samples = Samples(trained, LOSSES)
    cases = {
        "trained has shape [6, 8] and losses [6]": lambda: Samples(trained.T, LOSSES),
        "data has 5 rows, but trained counts 6": lambda: Samples(trained, LOSSES, [0] * 5),
        "labels has shape [5]": lambda: Samples(trained, LOSSES, labels=LABELS[:5]),
        "no class labels: pass labels": samples.class_shares,
        "other has 3 rows, but this run 6": lambda: samples.overlap(
            Samples(trained[:, :3], LOSSES[:3])
        ),
        "marks 0 rows: pass a bool tensor of shape [6]": lambda: audit(trained, LOSSES, wrong),
        "wrong is torch.int64 of shape [6]": lambda: audit(trained, LOSSES, LABELS),
        "wrong is torch.bool of shape [5]": lambda: audit(trained, LOSSES, ~wrong[1:]),
        "images holds no image": lambda: samples.picture(0),
    }
    missed = {}
    for sentence, call in cases.items():
        try:
            call()
        except ValueError as error:
            if sentence not in str(error):
                missed[sentence] = str(error)
        else:
            missed[sentence] = "accepted"
    assert missed == {}


def test_planted_wrong_labels_have_the_highest_losses():
    made = condition("wrong_labels", split("digits").train.subset(range(0, 1290, 2)), share=0.1)
    model = models.build("digits_cnn", made.data.shape, made.data.num_classes, seed=0)
    visits = Visits(GatedStep(Gate(0.25)), len(made.data), lambda: trainer.progress)
    config = TrainConfig(lr=3e-3)
    trainer = Trainer(model, Loader(made.data, 64), step=visits, epochs=12, config=config)
    trainer.run()
    samples = Samples(visits.trained, visits.losses, made.data)
    found = audit(visits.trained, visits.losses, made.wrong)
    assert found.precision > 0.75
    assert found.average_precision > 0.8
    assert found.training_share > 2 * found.chance  # a gate trains on what it cannot fit
    suspects = samples.likely_mislabelled
    assert len(suspects) > 15
    assert made.wrong[suspects].double().mean() > 0.85
    assert made.wrong[samples.groups["never selected"]].double().mean() < 0.02
