"""A training run's bar: few updates an epoch, and what it says at each."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader

from astkit.trainers import Budget, Trainer
from astkit.trainers.progress import follow
from tests import build


def trainer_of(batches: int, data: Any = None, **options: Any) -> Trainer:
    """A trainer on batches of one row."""
    if data is None:
        data, options = build.rows(batches), {**options, "batch_size": 1}
    return build.trainer(None, data, **options)


@pytest.fixture
def minutes(clock: SimpleNamespace) -> Any:
    """An observer of a run in which each batch takes a minute."""

    def watch(batch: Any, result: Any) -> None:
        clock.now += 60

    def nothing(*args: Any, **options: Any) -> None: ...

    return SimpleNamespace(watch=watch, log=nothing, close=nothing)


def bars_of(trainer: Trainer, terminal: Any) -> list[str]:
    """What the bar of a run shows, without repeats."""
    screen = terminal()
    trainer.run()
    shown = [each.strip() for each in screen.getvalue().split("\r")]
    return list(dict.fromkeys(each for each in shown if each))


@pytest.mark.parametrize("batches", [1, 3, 10, 64])
def test_it_moves_at_most_ten_times_an_epoch(batches: int) -> None:
    places: list[tuple[int, float]] = []
    trainer = trainer_of(batches, epochs=3)
    for _ in follow(trainer, lambda run: places.append((run.epoch, run.progress))):
        pass
    assert len(places) == 3 * min(batches, 10)
    assert [place for _, place in places] == sorted({place for _, place in places})
    assert places[-1] == (3, 1.0)


def test_it_says_epoch_loss_rate_and_time_left(minutes: Any, terminal: Any) -> None:
    shown = bars_of(trainer_of(20, epochs=2, observers=[minutes]), terminal)
    assert re.match(r"epoch 1/2, loss \S+: +5%\|.*\| 2/40 \[02:00<38:00, ", shown[1])
    assert shown[1].endswith(", 60.00s/batch]")
    assert re.match(r"epoch 2/2, loss \S+: 100%\|.*\| 40/40 \[40:00<00:00, ", shown[-2])
    assert shown[-1] == "2 epochs in 40:00"


def test_other_budgets_and_loaders_of_unknown_length(minutes: Any, terminal: Any) -> None:
    flops = trainer_of(20, epochs=1).run(progress=False).epochs[-1]["flops"]
    run = trainer_of(20, budget=Budget(flops=2.5 * flops), observers=[minutes])
    *_, last, _ = bars_of(run, terminal)
    assert last.startswith("epoch 3, loss ")
    assert "100%|" in last
    assert "| 50/50 [50:00<00:00, " in last
    run = trainer_of(
        20, DataLoader(build.as_stream(build.rows(10)), 1), epochs=2, observers=[minutes]
    )
    shown = bars_of(run, terminal)
    assert "| 10/20 [10:00<10:00, " in shown[-3]  # at the end of an epoch
    assert shown[-1] == "2 epochs in 20:00"


def test_a_resumed_run_counts_its_own_time(minutes: Any, terminal: Any, tmp_path: Any) -> None:
    steps = trainer_of(20, epochs=2, checkpoints=tmp_path).steps()
    for _ in range(21):  # 20 batches, and the end of the epoch
        next(steps)
    steps.close()
    again = trainer_of(20, epochs=2, observers=[minutes], checkpoints=tmp_path, resume=True)
    shown = bars_of(again, terminal)
    assert "| 22/40 [02:00<18:00, 60.00s/batch]" in shown[1]


def test_it_is_shown_where_it_is_asked_for(capsys: Any) -> None:
    trainer_of(3, epochs=1).run()
    assert capsys.readouterr() == ("", "")
    trainer_of(3, epochs=1).run(progress=True)
    assert "1 epoch in 0:00" in capsys.readouterr().err
    with pytest.raises(ValueError, match="progress is 'yes'"):
        trainer_of(3, epochs=1).run(progress="yes")  # type: ignore[arg-type]
