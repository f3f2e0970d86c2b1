"""The arms of the switches: processes that take turns, one pass a call."""

from __future__ import annotations

import json
import multiprocessing
from contextlib import contextmanager

import pytest
import torch

from tests.benchmarks import switches
from tests.benchmarks.switches import Bench, Switch

BENCH = Bench("digits_cnn", batches=2)


@contextmanager
def in_this_process(bench, chosen):
    arms = {switch.name: switches._Arm(bench, switch, 1) for switch in chosen}
    yield {name: lambda what, arm=arm: getattr(arm, what)() for name, arm in arms.items()}


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.full)])
def measured(request):
    chosen = [switches.SWITCHES[0], Switch("small", {"micro_batch": 32}, resident=True)]
    with pytest.MonkeyPatch.context() as patch:
        if not request.param:  # processes of their own take seconds to start
            patch.setattr(switches, "running", in_this_process)
        return switches.measure(BENCH, chosen, rounds=3)


def test_every_arm_trains_one_pass_a_round(measured):
    for report in measured.reports.values():
        assert report["time"]["training_steps"] == 3 * 2  # the warm-up round is left out
        assert report["memory"] > 0
    assert measured.reports["small"]["settings"]["micro_batch"] == 32
    assert measured.reports["plain"]["settings"]["fused"] is False


def test_the_table_holds_speeds_beside_the_first_arm(measured):
    table = measured.table()
    assert list(table.index) == ["plain", "small"]
    assert table.loc["plain", "speed"] == 1.0
    expected = measured.seconds.ratio("plain", "small")
    assert table.loc["small", "speed"] == expected.median
    images = BENCH.rows / measured.seconds.median("small")
    assert table.loc["small", "images / s"] == pytest.approx(images)
    json.dumps(measured.to_dict(), allow_nan=False)


def test_the_time_of_an_arm_is_that_of_its_phases(measured):
    time = measured.reports["small"]["time"]
    assert set(time["phases"]) >= {"load", "forward", "backward", "optimizer"}
    assert sum(time["phases"].values()) <= time["seconds"]


@pytest.mark.full
def test_an_arm_that_fails_says_so():
    refused = Switch("refused", {"precision": "fp7"})
    with pytest.raises(
        RuntimeError, match="the arm 'refused' failed: ValueError: precision is 'fp7'"
    ):
        switches.measure(BENCH, [Switch("plain"), refused], rounds=2)


@pytest.mark.full
def test_no_process_is_left_behind():
    before = set(multiprocessing.active_children())
    with switches.running(BENCH, [Switch("plain")]) as arms:
        arms["plain"]("one_pass")
        assert len(set(multiprocessing.active_children()) - before) == 1
    assert set(multiprocessing.active_children()) <= before


def test_all_that_auto_picks_changes_nothing_that_is_learned():
    settings = dict(switches.TOGETHER.settings)
    assert settings["accumulation_steps"] == 1
    assert settings["batch_size"] is None
    assert settings["validation_fraction"] == 1.0


def test_the_plain_items_are_the_images_of_the_loader():
    images = switches.synthetic(8)
    batch = next(
        iter(switches.Loader(images, 8, shuffle=False, normalize=switches.STATS).batches(0))
    )
    items = torch.stack([switches.Items(images)[row][0] for row in range(8)])
    torch.testing.assert_close(items, batch.x, rtol=1e-5, atol=1e-5)
