"""What test rows, groups and parts of them say of a run, beside values found by hand."""

import math

import pytest
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from astkit import Metric
from astkit.comparison.units import (
    by_group,
    jackknife,
    parts_of_groups,
    parts_of_rows,
    values_by_unit,
    values_without,
)
from astkit.datasets import Loader
from astkit.datasets.dependence import autocorrelation_time


class Spread:
    """The root of the mean square of all outputs: no mean over rows."""

    def __init__(self) -> None:
        self.sum, self.rows = 0.0, 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.sum += float(outputs.double().square().sum())
        self.rows += len(targets)

    def compute(self) -> float:
        return (self.sum / self.rows) ** 0.5


def test_pseudo_values_of_a_mean_are_the_means_of_its_parts() -> None:
    values = torch.arange(12.0) ** 2
    parts = torch.tensor([0, 1, 2, 3] * 3)
    found = jackknife(lambda rows: float(values[rows].mean()), parts)
    assert found.tolist() == pytest.approx([float(values[each::4].mean()) for each in range(4)])
    assert by_group(values, parts + 7).tolist() == pytest.approx(found.tolist())
    uneven = torch.tensor([0] * 7 + [1] * 3 + [2] * 2)
    expected = [
        3 * float(values.mean()) - 2 * float(values[uneven != each].mean()) for each in range(3)
    ]
    assert by_group(values, uneven).tolist() == pytest.approx(expected)
    unlabelled = torch.cat([values, torch.tensor([math.nan])])
    assert by_group(unlabelled, torch.cat([uneven, uneven[:1]])).tolist() == pytest.approx(expected)
    one = by_group(values, torch.zeros(12).long())
    assert one.tolist() == pytest.approx([float(values.mean())])


def test_rows_are_divided_into_parts_of_neighbours_and_of_whole_groups() -> None:
    assert parts_of_rows(5).tolist() == [0, 1, 2, 3, 4]
    many = parts_of_rows(1030)
    assert set(many.bincount().tolist()) == {5, 6}
    assert bool((many.diff() >= 0).all())
    assert parts_of_rows(1030, dealt=True).tolist() == [row % 200 for row in range(1030)]
    groups = torch.arange(900) % 450 * 3
    assert len(parts_of_groups(groups).unique()) == 200
    assert all(len(parts_of_groups(groups)[groups == each].unique()) == 1 for each in groups)


@pytest.mark.parametrize("kind", ["folders", "shuffled folders", "two classes"])
def test_the_order_of_classes_in_folders_is_no_dependence(kind: str) -> None:
    """Some classes are harder; the same rows in another order are told from states in time."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(600) * (2 if kind == "two classes" else 10) // 600
    data = TensorDataset(torch.zeros(600, 1), labels)
    source = Loader(data, 32, shuffle=kind == "shuffled folders")
    right = (torch.rand(600, generator=random) < 0.9 - 0.3 * (labels % 2)).float()
    loaded = source.order(0)
    found = values_by_unit(right[loaded], source, labels[loaded])
    assert float(found.mean()) == pytest.approx(float(right.mean()), abs=1e-5)
    assert autocorrelation_time(found.numpy()) == 1
    states = labels.roll(300 if kind == "two classes" else 30)  # one of them comes twice
    states[100:120] = 0
    plain = values_by_unit(right[loaded], source, states[loaded])
    assert plain.equal(right)
    assert autocorrelation_time(plain.numpy()) > 2


def test_parts_of_folders_have_all_classes() -> None:
    labels = torch.arange(999) // 333
    outputs = torch.rand(999, 1, generator=torch.Generator().manual_seed(0)) + labels[:, None]
    metric = Metric("spread", Spread(), higher_is_better=False)
    spreads = []
    for order in (torch.arange(999), torch.arange(999).reshape(3, 333).T.flatten()):
        data = Subset(TensorDataset(outputs, labels), order.tolist())
        kept = [(outputs[order], labels[order])]
        values = values_without(metric, kept, Loader(data, shuffle=False))
        assert len(values) == 200
        spreads.append(float(values.std()))
    assert spreads[0] == pytest.approx(spreads[1], rel=0.15)
