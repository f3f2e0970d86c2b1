"""Levels below INFO, nothing configured by an import, and no metric computed that nobody wants."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from astkit import logs

LEVELS = {"PROFILING": 11, "PERFORMANCE": 13, "TRAINING": 15}


def fail():
    raise AssertionError("the metrics were computed, although nobody wants them")


@pytest.mark.parametrize(("name", "level"), LEVELS.items())
def test_levels_lie_between_debug_and_info_and_have_names(name, level):
    assert logging.DEBUG < getattr(logs, name) == level < logging.INFO
    assert logging.getLevelName(level) == name
    assert logging.getLevelName(name) == level


def test_importing_configures_nothing():
    code = (
        "import logging, astkit.logs as logs\n"
        "kit = logging.getLogger('astkit')\n"
        "print(logging.root.handlers, logging.root.level, kit.level, kit.propagate,"
        " [type(h).__name__ for h in kit.handlers], logs.enabled(logs.TRAINING))\n"
        "kit.warning('nobody listens')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] 30 0 True ['NullHandler'] False"
    assert "nobody listens" not in done.stderr


@pytest.mark.parametrize("level", LEVELS.values())
def test_a_level_that_is_off_computes_nothing(caplog, level):
    with caplog.at_level(logging.INFO, "astkit"):
        assert not logs.enabled(level)
        logs.record(level, "step 1", fail)
    assert not caplog.records
    with caplog.at_level(level + 1, "astkit"):
        logs.record(level, "step 1", fail)
    with caplog.at_level(level, "astkit"), pytest.raises(AssertionError, match="computed"):
        logs.record(level, "step 1", fail)


def test_a_record_holds_text_and_values(caplog):
    with caplog.at_level("TRAINING", "astkit"):
        logs.record(logs.TRAINING, "step 7", lambda: {"loss": 0.123456, "rate": None, "seen": 64})
    (record,) = caplog.records
    assert record.getMessage() == "step 7 loss=0.1235 rate=None seen=64"
    assert record.metrics == {"loss": 0.123456, "rate": None, "seen": 64}
    assert (record.name, record.levelno, record.levelname) == ("astkit", 15, "TRAINING")
    assert record.funcName == "test_a_record_holds_text_and_values"  # who asked, not the helper


def test_percent_signs_in_metrics_are_text(caplog):
    with caplog.at_level("PROFILING", "astkit"):
        logs.record(logs.PROFILING, "100 %s", lambda: {"share": "12.5%"})
    assert caplog.messages == ["100 %s share=12.5%"]


def test_enabled_follows_every_change_of_level(caplog):
    for name, level in LEVELS.items():
        caplog.set_level(name, "astkit")
        assert [logs.enabled(other) for other in LEVELS.values()] == [
            other >= level for other in LEVELS.values()
        ]
    logging.disable(logging.INFO)
    try:
        assert not logs.enabled(logs.TRAINING)
    finally:
        logging.disable(logging.NOTSET)
    assert logs.enabled(logs.TRAINING)
