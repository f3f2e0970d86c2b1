"""The promises of docs/promises.md: each names tests that exist; those without another place."""

import itertools
import math
import re
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset

from astkit import Gate, TrainConfig, Trainer, distributed
from tests import build

DOCS = Path(__file__).resolve().parents[1] / "docs"
CLASSES = (torch.Tensor, nn.Module, nn.Linear, nn.LayerNorm, DataLoader, Dataset)


def test_every_promise_names_tests_that_exist() -> None:
    page = (DOCS / "promises.md").read_text("utf-8").partition("\n## ")[0]
    promises = re.split(r"^\d+\. ", page, flags=re.MULTILINE)[1:]
    assert len(promises) == 10
    for promise in promises:
        named = re.findall(r"((?:`test_\w+`(?:,|\s|and)*)+)in\s+\[[\w.]+\]\((\S+)\)", promise)
        tests = [(name, file) for names, file in named for name in re.findall(r"`(\w+)`", names)]
        assert len(tests) == promise.count("`test_") > 0
        for name, file in tests:
            assert f"\ndef {name}(" in (DOCS / file).read_text("utf-8"), name


def trained(policy: Any) -> Trainer:
    """A run on data whose validation rows follow the same law."""
    model = build.network(4, 2, 8, nn.LayerNorm(8), nn.ReLU())
    data = build.rows(900, classes=2), build.rows(240, classes=2, seed=1)
    trainer: Trainer = build.trainer(model, *data, policy=policy, batch_size=50)
    trainer.run()
    return trainer


def weights(trainer: Trainer) -> list[Any]:
    return [value.tolist() for value in trainer.model.state_dict().values()]


@pytest.mark.parametrize("policy", [None, "gate", "infobatch", "auto"])
def test_the_same_seed_gives_the_same_weights_to_the_bit(policy: str | None) -> None:
    assert weights(trained(policy)) == weights(trained(policy))


@pytest.mark.parametrize("policy", ["aim", "auto"])
def test_where_nothing_differs_the_weights_are_those_of_dense_training(policy: str) -> None:
    assert weights(trained(policy)) == weights(trained(None))


def test_the_classes_of_torch_stay_as_they_were() -> None:
    before = [dict(vars(kind)) for kind in CLASSES]
    trained(Gate(0.25))
    assert [dict(vars(kind)) for kind in CLASSES] == before


pytestmark = pytest.mark.filterwarnings("ignore:a batch of .* active rows")

POLICIES = st.sampled_from([None, "gate", "infobatch", "cached_loss"])


def small(count: int, size: int, policy: Any = None, width: int = 8, **options: Any) -> Trainer:
    """A run of two epochs on ``count`` rows, in batches of ``size``."""
    options = {"train": build.rows(count, classes=2), "batch_size": size, **options}
    return build.trainer(build.network(4, 2, width), policy=policy, **options)


@settings(max_examples=10)
@given(count=st.integers(20, 60), size=st.integers(3, 20), policy=POLICIES, share=st.floats(0, 1))
def test_a_run_that_stops_anywhere_ends_as_one_that_does_not(count, size, policy, share):
    whole = small(count, size, policy)
    records = sum(1 for _ in whole.steps())
    with tempfile.TemporaryDirectory() as folder:
        steps = small(count, size, policy, checkpoints=folder).steps()
        for _ in itertools.islice(steps, 1 + int(share * (records - 1))):
            pass
        steps.close()
        again = small(count, size, policy, checkpoints=folder, resume=True)
        again.run()
    assert weights(again) == weights(whole)
    assert again.ledger.flops.total == whole.ledger.flops.total


@settings(max_examples=10)
@given(
    count=st.integers(20, 60),
    size=st.integers(3, 20),
    width=st.integers(2, 9),
    policy=st.sampled_from([None, {"name": "gate", "score": "loss"}]),
)
def test_flops_are_those_of_the_rows_that_passed(count, size, width, policy):
    trainer = small(count, size, policy, width)
    trainer.run()
    samples, forward = trainer.ledger.samples, 2 * (4 * width + 2 * width)
    backward = 2 * (4 * width + 2 * 2 * width)  # of the first layer no gradient of the inputs
    assert samples.trained + samples.skipped == 2 * count
    assert samples.scored == (2 * count if policy else 0)
    expected = samples.trained * (forward + backward) + samples.scored * forward
    assert trainer.ledger.flops.total == expected


@given(rows=st.integers(0, 200), world=st.integers(1, 9))
def test_processes_share_all_rows_evenly(rows: int, world: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "world", lambda: world)
        shares = []
        for rank in range(world):
            patch.setattr(distributed, "rank", lambda rank=rank: rank)
            shares.append(list(range(rows))[distributed.share(rows)])
        even = distributed.shared_evenly(rows)
    assert [row for share in shares for row in share] == list(range(rows))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert even % world == 0
    assert 0 <= rows - even < world


@settings(max_examples=15)
@given(
    place=st.integers(0, 39),
    value=st.sampled_from([math.nan, math.inf, -math.inf]),
    policy=st.sampled_from([None, "infobatch"]),  # which train on all rows at first
    size=st.integers(3, 20),
)
def test_a_row_that_is_not_finite_stops_the_run_before_weights_change(place, value, policy, size):
    data = build.rows(40, classes=2)
    data.tensors[0][place, 1] = value
    trainer = small(40, size, policy, train=data)
    seen = [weights(trainer)]
    with pytest.raises(FloatingPointError):
        seen += (weights(trainer) for _ in trainer.steps())
    assert weights(trainer) == seen[-1]


CONFIG = ("weight_decay", "warmup", "precision", "batch_size", "micro_batch", "accumulation_steps")
WRONG = st.one_of(
    st.floats(max_value=-0.001), st.just(math.nan), st.lists(st.integers()), st.text(), st.binary()
)


@given(name=st.sampled_from([*CONFIG, "epochs", "lr", "stop_after", "rate"]), value=WRONG)
def test_a_wrong_setting_is_one_sentence_with_its_name_and_value(name: str, value: Any) -> None:
    assume(value not in ("fp32", "bf16", "fp16"))
    make = TrainConfig if name in CONFIG else Gate if name == "rate" else partial(small, 20, 5)
    with pytest.raises(ValueError, match=f"^(budget )?{name} is ") as caught:
        make(**{name: value})
    sentence = str(caught.value)
    assert f"{value!r:.60}" in sentence
    assert "\n" not in sentence
    assert ": " in sentence  # the remedy
