"""Settings: known, in range, and refused by name otherwise."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from astkit.trainers import TrainConfig
from astkit.trainers.config import AUTO


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("lr", 0, "lr is 0: give a learning rate above 0"),
        ("lr", -1e-3, "lr is -0.001: give a learning rate above 0"),
        ("lr", math.nan, "lr is nan: give a learning rate above 0"),
        ("lr", math.inf, "lr is inf: give a learning rate above 0"),
        ("weight_decay", -0.1, "weight_decay is -0.1: give 0 or more"),
        ("weight_decay", math.nan, "weight_decay is nan: give 0 or more"),
        ("weight_decay", math.inf, "weight_decay is inf: give 0 or more"),
        ("clip_norm", 0, "clip_norm is 0: give a norm above 0, or None"),
        ("clip_norm", -1, "clip_norm is -1: give a norm above 0, or None"),
        ("clip_norm", math.nan, "clip_norm is nan: give a norm above 0, or None"),
        ("schedule", "linear", "schedule is 'linear': choose one of cosine, constant"),
        ("precision", "fp8", "precision is 'fp8': choose one of fp32, bf16, fp16, auto"),
        ("precision", None, "precision is None: choose one of fp32, bf16, fp16, auto"),
        ("precision", ["bf16"], r"precision is \['bf16'\]: choose one of fp32"),
        ("channels_last", "yes", "channels_last is 'yes': choose one of True, False, auto"),
        ("channels_last", 1, "channels_last is 1: choose one of True, False, auto"),
        ("fused", None, "fused is None: choose one of True, False, auto"),
        ("compile", "on", "compile is 'on': choose one of True, False, auto"),
        ("attention", "fast", "attention is 'fast': choose one of auto, math, flash"),
        ("activation_checkpointing", "auto", "is 'auto': choose one of True, False$"),
        ("deterministic", 0, "deterministic is 0: choose one of True, False$"),
        ("allocator", True, "allocator is True: choose one of auto, on, off"),
        ("prefetch", 2, "prefetch is 2: choose one of True, False, auto"),
        ("batch_size", 0, "batch_size is 0: give a whole number, 1 or more, or 'auto', or None"),
        ("batch_size", "all", "batch_size is 'all': give a whole number, 1 or more, or 'auto'"),
        ("batch_size", 32.0, "batch_size is 32.0: give a whole number, 1 or more"),
        ("micro_batch", 0, "micro_batch is 0: give a whole number, 1 or more, or None"),
        ("micro_batch", "auto", "micro_batch is 'auto': give a whole number, 1 or more, or None"),
        ("accumulation_steps", 0, "accumulation_steps is 0: give a whole number, 1 or more$"),
        ("accumulation_steps", True, "accumulation_steps is True: give a whole number"),
        ("accumulation_steps", None, "accumulation_steps is None: give a whole number"),
        ("accumulation_steps", 1.5, "accumulation_steps is 1.5: give a whole number"),
        ("threads", -1, "threads is -1: give a whole number, 1 or more, or 'auto'"),
        ("metrics_every", 0, "metrics_every is 0: give a whole number, 1 or more$"),
        ("validation_fraction", 0, r"validation_fraction is 0: give a share in \(0, 1\]"),
        ("validation_fraction", 1.1, r"validation_fraction is 1.1: give a share in \(0, 1\]"),
        ("validation_fraction", math.nan, "validation_fraction is nan: give a share"),
    ],
)
def test_a_value_out_of_range_is_refused(name, value, sentence):
    for build in (TrainConfig, lambda **settings: TrainConfig.from_dict(settings)):
        with pytest.raises(ValueError, match=sentence):
            build(**{name: value})


def test_the_edges_are_allowed():
    TrainConfig(lr=1e-12, weight_decay=0, clip_norm=None, schedule="constant", precision="bf16")
    TrainConfig(clip_norm=1e-9)
    TrainConfig(batch_size=1, micro_batch=1, accumulation_steps=1, threads=1, metrics_every=1)
    TrainConfig(validation_fraction=1, batch_size=None, micro_batch=None)
    TrainConfig(validation_fraction=1e-9, batch_size="auto", threads="auto")


@pytest.mark.parametrize("name", AUTO)
def test_each_switch_that_fast_sets_has_an_auto(name):
    assert getattr(TrainConfig.fast(), name) == "auto"
    assert getattr(TrainConfig.fast(**{name: getattr(TrainConfig(), name)}), name) != "auto"


def test_fast_changes_nothing_that_is_learned():
    fast, plain = TrainConfig.fast(lr=0.3).to_dict(), TrainConfig(lr=0.3).to_dict()
    assert {name for name in plain if fast[name] != plain[name]} == set(AUTO)
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
        lr=0.3, clip_norm=None, precision="auto", channels_last=True, batch_size="auto", seed=4
    )
    settings = json.loads(json.dumps(config.to_dict()))
    assert TrainConfig.from_dict(settings) == config
    assert settings.keys() == {field.name for field in dataclasses.fields(TrainConfig)}
    assert TrainConfig.from_dict({}) == TrainConfig()


def test_it_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig().lr = 1.0
