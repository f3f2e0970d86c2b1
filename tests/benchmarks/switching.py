"""What a policy that loses costs with `switch_off`: `python -m tests.benchmarks.switching`.

Whole runs of the digits CNN in one process on one CPU thread: dense training, two policies made to
lose and one that pays, all with ``TrainConfig(switch_off=True)`` and the same number of offered
rows. The runs of a round advance in short turns, so that all meet the same speed of the machine. A
dense run takes about ``--seconds``. What is compared are CPU seconds, which other processes disturb
less; the switch itself decides by elapsed ones. Writes switching.json.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from statistics import median

from astkit import models, rng
from astkit.gating import Gate, Policy, RandomSubset, Visit
from astkit.trainers import TrainConfig, Trainer
from tests.benchmarks.measure import Figure, digits_loader, figure, line, one_thread, record

RESULTS = Path(__file__).with_name("switching.json")
ROUNDS, SECONDS, TURN = 11, 60.0, 200  # steps
BOUND = 1.02


class SlowFeedback(RandomSubset):
    """Half of the rows, with a feedback that takes ``seconds`` a batch."""

    def __init__(self, seconds: float) -> None:
        super().__init__(0.5)
        self.seconds = seconds

    def observe(self, visit: Visit) -> None:
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass


def new(policy: Policy | None, epochs: float) -> Trainer:
    """A run before its first step."""
    loader = digits_loader()
    model = models.build("digits_cnn", loader.data.shape, loader.data.num_classes)
    config = TrainConfig(switch_off=True, metrics_every=100)
    return Trainer(model, loader, policy=policy, epochs=epochs, config=config, device="cpu")


def in_turns(runs: dict[str, Trainer], key: int) -> dict[str, float]:
    """CPU seconds of whole runs, which advance by `TURN` steps each, in a new order each turn."""
    seconds = dict.fromkeys(runs, 0.0)
    active = {name: run.steps() for name, run in runs.items()}
    for turn in count():
        names = list(active)
        for place in rng.permutation(len(names), 0, "order", key, turn).tolist():
            steps, begin = active[names[place]], time.process_time()
            done = sum(1 for _ in islice(steps, TURN))
            seconds[names[place]] += time.process_time() - begin
            if done < TURN:
                del active[names[place]]
        if not active:
            return seconds
    raise AssertionError


def measured(rounds: int, seconds: float) -> Iterator[Figure]:
    """CPU seconds of each policy's runs over those of dense training, and what was decided."""
    trial, begin = new(None, 20), time.process_time()
    trial.run()
    epoch = (time.process_time() - begin) / 20
    epochs, step = seconds / epoch, 20 * epoch / trial.position.step
    times: list[dict[str, float]] = []
    ends: list[dict[str, Trainer]] = []
    for number in range(rounds):
        policies: dict[str, Policy | None] = {
            "dense": None,
            "gate at rate 0.9": Gate(0.9, "loss"),
            "slow feedback": SlowFeedback(2 * step),
            "random at rate 0.25": RandomSubset(0.25),
        }
        ends.append({name: new(policy, epochs) for name, policy in policies.items()})
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* is switched off")
            times.append(in_turns(ends[-1], number))
    for name in [name for name in ends[0] if name != "dense"]:
        runs = [each[name] for each in ends]
        switches = [run.switch for run in runs if run.switch is not None]
        assert len(switches) == rounds
        pays = name.startswith("random")
        yield figure(
            f"{name} / dense, CPU seconds of a run",
            [each[name] / each["dense"] for each in times],
            "at most",
            None if pays else BOUND,
            f"whole runs of {epochs:.1f} epochs, digits_cnn, batch 128, switch_off=True",
            pays=pays,
            ended=[switch.switched for switch in switches],
            probed=[
                switch.probed / run.ledger.seconds["training"]
                for switch, run in zip(switches, runs, strict=True)
            ],
            seconds=median(each[name] for each in times),
            seconds_dense=median(each["dense"] for each in times),
        )


def main(arguments: list[str] | None = None) -> None:
    """Measure all arms and write the results in one piece."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a dense run")
    options = parser.parse_args(arguments)
    with one_thread():
        record(options.out, measured(options.rounds, options.seconds), line)


if __name__ == "__main__":
    main()
