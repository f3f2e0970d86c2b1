"""Learned significance: a small network predicts the next loss of each sample from its history."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from astkit import rng
from astkit.checks import check_number
from astkit.gating.policies.draws import draw_weighted
from astkit.gating.policy import Policy, PolicyCard, RunInfo, Selection, Visit, check_samples

FEATURES, HIDDEN = 5, 8
"""Inputs and hidden units of the network."""
_PASS = 2.0 * HIDDEN * (FEATURES + 1)  # FLOPs of a forward pass per sample
MOST, STEPS, LR = 2048, 20, 1e-2
"""Samples, optimizer steps and learning rate of the fit before each epoch."""
LEAST = 1e-3
"""Losses are clamped to at least this before the logarithm."""


class Learned(Policy):
    """Draws ``rate * N`` samples per epoch without replacement, with p proportional to the root of
    the predicted loss.

    Example::

        Trainer(model, train, policy=Learned(0.3), epochs=4).run()

    A network with one hidden layer predicts how the logarithm of a sample's loss changes from its
    latest visit to the next one. Inputs: logarithms of the last two losses, of 1 + the epochs since
    the latest visit and of 1 + the number of visits, and the mean log-loss of the sample's class
    (without labels, of all samples). Before each epoch it is fitted to samples of the last epoch,
    whose loss then is the target. Untrained it predicts the latest loss, as `CachedLoss` does.
    Samples without a recorded loss are drawn first.
    """

    card = PolicyCard(
        source="this package; loss prediction as in Yoo and Kweon, CVPR 2019",
        cost="a network of 57 weights, fitted before each epoch and evaluated for each sample;"
        " skipped samples are not loaded",
        bias="towards samples with a high predicted loss; not corrected",
        avoid="with few epochs, in which there is no history; with noisy labels",
    )
    needs_index = True
    state = ("past", "times", "visits", "now")

    def __init__(self, rate: float = 0.3, seed: int = 0) -> None:
        self.rate, self.seed, self.now = check_number("rate", rate), seed, 0
        # of each sample: logarithms of the last three losses, infinite if unknown; epochs of the
        # last two visits; number of visits
        self.past, self.times, self.visits = torch.empty(3, 0), torch.empty(2, 0), torch.empty(0)

    @cached_property
    def network(self) -> nn.Sequential:
        """The network; drawn when it is first needed, since `compare` sets the seed of a copy."""
        with rng.isolated("cpu", self.seed, "learned"):
            first = nn.Linear(FEATURES, HIDDEN, dtype=torch.float32)
            last = nn.Linear(HIDDEN, 1, dtype=torch.float32)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        return nn.Sequential(first, nn.Tanh(), last)

    @cached_property
    def _optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.network.parameters(), LR)

    def plan(self, run: RunInfo) -> Selection:
        if not self.past.shape[1]:
            self.past = torch.full((3, run.samples), torch.inf, dtype=torch.float32)
            self.times = torch.zeros_like(self.past[1:])
            self.visits = torch.zeros_like(self.past[0])
        check_samples(self, self.past[0], run)
        random = rng.generator(run.seed, "learned", run.epoch, run.round)
        self.fit(run, random)
        self.now, rows = run.epoch, len(run.rows)
        weight = torch.where(self.past[0].isinf(), 1e30, self.predict(run).sqrt())
        drawn = draw_weighted(weight[run.rows], max(1, round(self.rate * rows)), random)
        return Selection(run.rows[drawn])

    def fit(self, run: RunInfo, random: torch.Generator) -> None:
        """Train the network on samples of the last epoch that were visited before, if any."""
        again = (self.past[1].isfinite() & (self.times[0] == self.now)).nonzero().squeeze(1)
        if not len(again):
            return
        rows = again[torch.randint(len(again), (min(MOST, len(again)),), generator=random)]
        x, target = self.features(run, 1)[rows], (self.past[0] - self.past[1])[rows]
        with torch.enable_grad():
            for _ in range(STEPS):
                self._optimizer.zero_grad()
                nn.functional.mse_loss(self.network(x).squeeze(1), target).backward()
                self._optimizer.step()
        self.flops += STEPS * len(rows) * 3 * _PASS

    @torch.no_grad()
    def predict(self, run: RunInfo) -> Tensor:
        """The predicted loss of each sample, ``[samples]``; infinite without a recorded one."""
        self.flops += run.samples * _PASS
        change = self.network(self.features(run, 0)).squeeze(1)
        return (self.past[0] + change.clamp(-3, 3)).exp()

    def features(self, run: RunInfo, back: int) -> Tensor:
        """Inputs ``[samples, FEATURES]`` as of now, or for ``back`` 1 as of the latest visit."""
        latest, before = self.past[back : back + 2].nan_to_num(posinf=0.0)
        before = torch.where(self.past[back + 1].isinf(), latest, before)
        now = self.times[0] if back else torch.tensor(float(run.epoch))
        age, visits = (now - self.times[back]).log1p(), (self.visits - back).clamp_min(0).log1p()
        known = self.past[back].isfinite()
        groups = torch.zeros_like(known, dtype=torch.int64)
        if run.labels is not None:  # of any size
            groups = run.labels.unique(return_inverse=True)[1]
        total, count = groups.bincount(latest), groups.bincount(known.float())
        mean = (total / count.clamp_min(1)).float()[groups]
        return torch.stack([latest, before, age, visits, mean], 1)

    def observe(self, visit: Visit) -> None:
        assert visit.index is not None
        finite = visit.losses.isfinite()
        index, losses = visit.index[finite], visit.losses[finite].float()
        self.past[1:, index] = self.past[:2, index]
        self.past[0, index] = losses.clamp_min(LEAST).log()
        self.times[1, index] = self.times[0, index]
        self.times[0, index] = float(self.now)
        self.visits[index] += 1

    def state_dict(self) -> dict[str, Any]:
        fitted = {"network": self.network.state_dict(), "optimizer": self._optimizer.state_dict()}
        return {**super().state_dict(), "fitted": copy.deepcopy(fitted)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.network.load_state_dict(state["fitted"]["network"])
        # a torch optimizer keeps the tensors that it is given
        self._optimizer.load_state_dict(copy.deepcopy(state["fitted"]["optimizer"]))
