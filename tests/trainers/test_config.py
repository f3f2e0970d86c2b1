"""Settings: known, in range, and refused by name otherwise."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import pytest

from astkit.trainers import TrainConfig
from astkit.trainers.config import AUTO

WHOLE = "give a whole number, 1 or more"
REFUSED = [
    ("lr", (0, -1e-3, math.nan, math.inf, "0.1", None), "give a learning rate above 0"),
    ("weight_decay", (-0.1, math.nan, math.inf, None), "give 0 or more"),
    ("clip_norm", (0, -1, math.nan, "1"), "give a norm above 0, or None"),
    ("schedule", ("linear",), "choose one of cosine, constant"),
    ("precision", ("fp8", None, ["bf16"]), "choose one of fp32, bf16, fp16, auto"),
    ("channels_last", ("yes", 1), "choose one of True, False, auto"),
    ("fused", (None,), "choose one of True, False, auto"),
    ("compile", ("on",), "choose one of True, False, auto"),
    ("attention", ("fast",), "choose one of auto, math, flash"),
    ("activation_checkpointing", ("auto",), "choose one of True, False$"),
    ("allocator", (True,), "choose one of auto, on, off"),
    ("switch_off", ("auto",), "choose one of True, False$"),
    ("prefetch", (2,), "choose one of True, False, auto"),
    ("batch_size", (0, "auto", 32.0), f"{WHOLE}, or None"),
    ("micro_batch", (0, "auto"), f"{WHOLE}, or None"),
    ("accumulation_steps", (0, True, None, 1.5), f"{WHOLE}$"),
    ("threads", (-1,), f"{WHOLE}, or 'auto'"),
    ("metrics_every", (0,), f"{WHOLE}$"),
    ("validation_fraction", (0, 1.1, math.nan, "1"), r"give a share in \(0, 1\]"),
]


def test_a_value_out_of_range_is_refused():
    for name, values, remedy in REFUSED:
        for value in values:
            sentence = f"{name} is {re.escape(repr(value))}: {remedy}"
            with pytest.raises(ValueError, match=sentence):
                TrainConfig(**{name: value})
            with pytest.raises(ValueError, match=sentence):
                TrainConfig.from_dict({name: value})


def test_the_edges_are_allowed():
    TrainConfig(lr=1e-12, weight_decay=0, clip_norm=None, schedule="constant", precision="bf16")
    TrainConfig(clip_norm=1e-9)
    TrainConfig(batch_size=1, micro_batch=1, accumulation_steps=1, threads=1, metrics_every=1)
    TrainConfig(validation_fraction=1, batch_size=None, micro_batch=None)
    TrainConfig(validation_fraction=1e-9, threads="auto")


@pytest.mark.parametrize("name", AUTO)
def test_each_switch_that_fast_sets_has_an_auto(name):
    assert getattr(TrainConfig.fast(), name) == "auto"
    assert getattr(TrainConfig.fast(**{name: getattr(TrainConfig(), name)}), name) != "auto"


def test_fast_changes_nothing_that_is_learned():
    fast, plain = TrainConfig.fast(lr=0.3).to_dict(), TrainConfig(lr=0.3).to_dict()
    assert {name for name in plain if fast[name] != plain[name]} == {*AUTO, "metrics_every"}
    assert fast["metrics_every"] > plain["metrics_every"]
    learned = {"lr", "weight_decay", "clip_norm", "schedule", "batch_size", "accumulation_steps"}
    assert learned.isdisjoint(AUTO)
    with pytest.raises(TypeError, match="momentum"):
        TrainConfig.fast(momentum=0.9)


def test_unknown_keys_are_all_named_with_what_may_be_chosen():
    names = ", ".join(sorted(field.name for field in dataclasses.fields(TrainConfig)))
    sentence = f"unknown setting learning_rate, momentum: choose from {names}$"
    with pytest.raises(ValueError, match=sentence):
        TrainConfig.from_dict({"lr": 0.1, "momentum": 0.9, "learning_rate": 1})
    with pytest.raises(ValueError, match=r"choose from accumulation_steps, .*, another, attention"):
        TrainConfig.from_dict({"unknown": 1}, also=["another"])


def test_it_goes_through_json_and_back():
    config = TrainConfig(
        lr=0.3, clip_norm=None, precision="auto", channels_last=True, batch_size=7, seed=4
    )
    settings = json.loads(json.dumps(config.to_dict()))
    assert TrainConfig.from_dict(settings) == config
    assert settings.keys() == {field.name for field in dataclasses.fields(TrainConfig)}
    assert TrainConfig.from_dict({}) == TrainConfig()


def test_it_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig().lr = 1.0
