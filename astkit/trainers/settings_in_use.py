"""Before the first batch: resolves "auto" settings, tunes the system, and records both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from astkit import system
from astkit.datasets import Prefetched, resized
from astkit.trainers.autotune import Decision, Scene, open_choices, resolve, stepper
from astkit.trainers.batch_order import Feed
from astkit.trainers.config import TrainConfig
from astkit.trainers.learner import Learner


class SettingUp:
    """Resolves a configuration on this machine, once for a run and all its resumptions.

    Attributes:
        config: the settings in use; before the first step "auto" may stand in it.
        decisions: what each "auto" became, and why.
        system: what `astkit.system.tuned` set.
    """

    def __init__(self, config: TrainConfig, learner: Learner, feed: Feed) -> None:
        self.config, self._learner, self._feed = config, learner, feed
        self.decisions: list[Decision] = []
        self.system: dict[str, Any] = {}
        self._scene: Scene | None = None
        if not open_choices(config):
            self._apply(config)

    @contextmanager
    def tuned(self, fixed_shapes: bool) -> Iterator[None]:
        """Resolve "auto" settings, and run a block with the system set for them."""
        config, learner = self.config, self._learner
        if open_choices(config):
            config, self.decisions = resolve(config, self._look())
            self._apply(config)
            learner.adopt(config)
        probe = None
        if config.allocator == "auto" and not self.system and learner.device.type == "cpu":
            probe = stepper(config, self._look(), config.precision, config.channels_last is True)
        with system.tuned(
            device=learner.device,
            threads=config.threads,
            allocator=config.allocator,  # type: ignore[arg-type]
            deterministic=config.deterministic,
            fixed_shapes=fixed_shapes,
            probe=probe,
            decided=self.system or None,
        ) as self.system:
            self._scene = None  # its batch and model copies are not needed any more
            yield

    def _look(self) -> Scene:
        if self._scene is None:
            feed, learner = self._feed, self._learner
            batch = feed.peek()
            self._scene = Scene(
                learner.model,
                batch,
                learner.device,
                learner.criterion,
                bool(getattr(feed.source, "resident", False)),
                bool(getattr(feed.source, "keyed", False)),
                feed.source.num_samples,
            )
        return self._scene

    def _apply(self, config: TrainConfig) -> None:
        self.config = config
        source = self._feed.source
        if isinstance(config.batch_size, int):
            resized(source, config.batch_size)
        if config.prefetch is True and not isinstance(source, Prefetched):
            self._feed.source = Prefetched(source)

    def record(self) -> dict[str, Any]:
        """What was decided and set, as plain values, for results and reports."""
        settings = self.config.to_dict()
        micro = self._learner.micro_batch
        batch = getattr(self._feed.source, "batch_size", None)
        steps = self.config.accumulation_steps
        return {
            "settings": {**settings, "micro_batch": micro},
            "batch_size": batch,
            "effective_batch_size": None if batch is None else batch * steps,
            "decisions": [decision.to_dict() for decision in self.decisions],
            "system": self.system,
        }

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must not decide again."""
        return {
            "config": self.config.to_dict(),
            "micro_batch": self._learner.micro_batch,
            "decisions": [decision.to_dict() for decision in self.decisions],
            "system": self.system,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the decisions of the resumed run."""
        settled = TrainConfig.from_dict(state["config"])
        names = open_choices(self.config)
        self.decisions = [Decision(**decision) for decision in state["decisions"]]
        self._apply(replace(self.config, **{name: getattr(settled, name) for name in names}))
        self.system = state["system"]
        self._learner.adopt(self.config)
        self._learner.micro_batch = state["micro_batch"]
