"""What comes next: the batches of a pass, in the order of the loader or of a sampler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from astkit import rng
from astkit.datasets import Batch, BatchSource
from astkit.gating import Sampler
from astkit.gating.selection import Selection
from astkit.trainers.position import Position, batches_in_pass


class Feed:
    """Gives the training batches one by one, from wherever a position says that the run is.

    Args:
        source: where batches come from.
        sampler: selection before loading; every row in the loader's order by default.
        device, seed: of the loaders that draw from torch's default generator.
    """

    def __init__(
        self, source: BatchSource, sampler: Sampler | None, device: torch.device, seed: int
    ) -> None:
        self.source, self.sampler = source, sampler
        self._plain = source  # knows its sizes; ``source`` may be one that wraps it
        self._key = (device, seed)
        self._batches: Iterator[Batch] | None = None
        self._selection: Selection | None = None
        self._drawn: Tensor | None = None  # state of the loader's own generator before the pass

    def next(self, position: Position) -> Batch | None:
        """The batch at ``position``; ``None`` where its pass ends.

        Raises ``ValueError`` for a pass without a batch, or a sampler without known rows.
        """
        # a loader that draws from the default RNG draws its order at the first batch that it gives,
        # so that one is keyed to the pass: taken up in the middle, a pass has the same order
        (device, seed), epoch = self._key, position.epoch
        number = 0 if self._batches is None else position.batch
        with rng.isolated(device, seed, "load", epoch, number):
            if self._batches is None:
                self._rewind_generator()
                self._batches = self.source.batches(epoch, self._order(epoch), position.batch)
            batch = next(self._batches, None)
        if batch is None and position.batch == 0:
            raise ValueError(
                f"the training data gave no batch in pass {epoch}: lower batch_size or leave"
                " drop_last out, and let the sampler select at least one row"
            )
        return batch

    def peek(self) -> Batch:
        """A batch as they will come, taken without the sampler, which would count it."""
        before = self._generator_state()
        first = Feed(self.source, None, *self._key).next(Position())
        if self._generator is not None and before is not None:
            self._generator.set_state(before)
        assert first is not None  # next refuses data without a batch
        return first

    def weight(self, position: Position, batch: Batch) -> Tensor | None:
        """What each row of ``batch`` counts for, float32 ``[batch]``; ``None`` for 1."""
        if self._selection is None:
            return None
        start = position.rows
        return self._selection.weight[start : start + len(batch.y)].to(batch.y.device)

    def observe(self, batch: Batch, rows: Tensor, losses: Tensor) -> None:
        """Tell the sampler which ``rows`` of ``batch`` were trained on, at what losses."""
        if self.sampler is not None:
            self.sampler.observe(batch.index[rows.to(batch.index.device)], losses)

    @property
    def share(self) -> float:
        """Share of the rows that the sampler chose for the present pass."""
        chosen = self._selection
        return 1.0 if chosen is None else len(chosen) / chosen.candidates

    @property
    def unloaded(self) -> int:
        """Rows that the present pass leaves out before loading."""
        chosen = self._selection
        return 0 if chosen is None else chosen.candidates - len(chosen)

    def batches_in_pass(self) -> float:
        """Batches in the present pass; infinity while a foreign loader cannot tell."""
        return batches_in_pass(self._plain, self._selection)

    def stop(self) -> None:
        """Let go of the batches; the next one is made anew from its position."""
        self._batches = None

    def end_pass(self) -> None:
        """The pass is over: the next one has another order and selection."""
        self._batches = self._selection = self._drawn = None

    def _rewind_generator(self) -> None:
        """Set a generator that an ordinary loader brings along as it was before the pass."""
        if self._generator is None:
            return
        if self._drawn is None:
            self._drawn = self._generator.get_state()
        self._generator.set_state(self._drawn)

    def _generator_state(self) -> Tensor | None:
        if self._drawn is not None or self._generator is None:
            return self._drawn
        return self._generator.get_state()

    @property
    def _generator(self) -> torch.Generator | None:
        return getattr(getattr(self._plain, "loader", None), "generator", None)

    def state_dict(self) -> dict[str, Any]:
        """The rows that were selected for the present pass, and what its order was drawn from."""
        chosen = self._selection
        selection = None if chosen is None else dict(vars(chosen))
        return {"selection": selection, "generator": self._generator_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in a pass whose rows were selected."""
        self.end_pass()
        if state["selection"] is not None:
            self._selection = Selection(**state["selection"])
        self._drawn = state["generator"]

    def _order(self, epoch: int) -> Tensor | None:
        """The rows of the present pass, selected once a pass; ``None`` for the loader's own."""
        if self.sampler is None:
            return None
        if self._selection is None:
            rows = self.source.num_samples
            if rows is None:
                raise ValueError(
                    "a sampler chooses rows before loading, but the training data cannot tell"
                    " how many rows there are: give the trainer an astkit Loader"
                )
            self._selection = self.sampler.select(epoch, rows)
        return self._selection.index
