"""What a policy that loses costs with `switch_off`: `python -m tests.benchmarks.switching`.

Whole runs of the digits CNN, interleaved in one process on one CPU thread: dense training, two
policies made to lose and one that pays, all with ``TrainConfig(switch_off=True)`` and the same
number of offered rows. A run of the dense arm takes about ``--seconds``. What is compared are CPU
seconds, which other processes disturb less; the switch itself decides by elapsed ones. Writes
switching.json.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from astkit import models
from astkit.gating import Gate, Policy, RandomSubset, Visit
from astkit.profiling import interleaved
from astkit.trainers import TrainConfig, Trainer
from tests.benchmarks.measure import Figure, digits_loader, figure, line, one_thread, record

RESULTS = Path(__file__).with_name("switching.json")
ROUNDS, SECONDS = 11, 60.0
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


def trained(policy: Policy | None, epochs: float) -> Trainer:
    """A run from its first to its last step."""
    loader = digits_loader()
    model = models.build("digits_cnn", loader.data.shape, loader.data.num_classes)
    config = TrainConfig(switch_off=True, metrics_every=100)
    run = Trainer(model, loader, policy=policy, epochs=epochs, config=config, device="cpu")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* is switched off")
        run.run()
    return run


def measured(rounds: int, seconds: float) -> Iterator[Figure]:
    """Seconds of each policy's runs over those of dense training, with the last state of each."""
    trained(None, 2)
    begin = time.perf_counter()
    trial = trained(None, 20)
    epoch = (time.perf_counter() - begin) / 20
    epochs, step = seconds / epoch, 20 * epoch / trial.position.step
    policies: dict[str, Callable[[], Policy | None]] = {
        "dense": lambda: None,
        "gate at rate 0.9": lambda: Gate(0.9, "loss"),
        "slow feedback": lambda: SlowFeedback(2 * step),
        "random at rate 0.25": lambda: RandomSubset(0.25),
    }
    ends: dict[str, list[Trainer]] = {name: [] for name in policies}

    def arm(name: str) -> Callable[[], None]:
        return lambda: ends[name].append(trained(policies[name](), epochs))

    arms = {name: arm(name) for name in policies}
    times = interleaved(arms, rounds=rounds, warmup=0, clock=time.process_time)
    dense = times.seconds["dense"]
    for name in [name for name in policies if name != "dense"]:
        switches = [run.switch for run in ends[name] if run.switch is not None]
        assert len(switches) == rounds
        pays = name.startswith("random")
        yield figure(
            f"{name} / dense, CPU seconds of a run",
            [own / other for own, other in zip(times.seconds[name], dense, strict=True)],
            "at most",
            None if pays else BOUND,
            f"whole runs of {epochs:.1f} epochs, digits_cnn, batch 128, switch_off=True",
            pays=pays,
            ended=[switch.switched for switch in switches],
            probed=[
                switch.probed / run.ledger.seconds["training"]
                for switch, run in zip(switches, ends[name], strict=True)
            ],
            seconds=times.median(name),
            seconds_dense=times.median("dense"),
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
