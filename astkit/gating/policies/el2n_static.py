"""Static EL2N: short runs score all samples before training; a fixed subset is trained on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from astkit import distributed
from astkit.gating.controllers import check_count, check_number
from astkit.gating.policies.helper_models import by_sample, isolated, train_models
from astkit.gating.policies.last_loss import check_samples
from astkit.gating.policy import Policy, PolicyCard, RunInfo, Selection
from astkit.gating.scores import gradient_norm, sample_index


class StaticEL2N(Policy):
    """Trains on the fraction ``rate`` of samples with the largest error norm early in training.

    Before training, ``runs`` copies of the model are trained for ``epochs`` epochs each and score
    every sample by ``||softmax(z) - y||``; the scores are averaged over the runs. The copies have
    equal initial weights if ``make_model`` returns equal ones (the `Trainer` does) and differ in
    the order of the data. Samples without a score are kept. In a custom training loop, call
    ``policy.prepare(make_model, ScoredBatches(loader))`` first, in every process. The paper has 10
    runs of 20 epochs.

    Args:
        runs, epochs: number of scoring runs, and epochs of each.
        lr: learning rate of AdamW in the scoring runs.
    """

    card = PolicyCard(
        source="Paul, Ganguli and Dziugaite, Deep Learning on a Data Diet (EL2N), NeurIPS 2021",
        cost="before training, `runs` times `epochs` epochs and a forward pass over the data; none"
        " during training",
        bias="towards samples that are hard early in training, in all epochs; not corrected",
        avoid="with noisy labels, and if training takes less time than the scoring runs",
    )
    needs_index = True
    state = ("scores",)

    def __init__(
        self, rate: float = 0.5, runs: int = 3, epochs: int = 1, lr: float = 1e-3, seed: int = 0
    ) -> None:
        self.rate, self.runs = check_number("rate", rate), check_count("runs", runs)
        self.epochs = check_count("epochs", epochs)
        self.lr, self.seed = lr, seed
        self.scores: Tensor | None = None  # float32 [samples]

    def prepare(self, make_model: Callable[[], nn.Module], data: Any) -> None:
        parts = []
        for run in range(self.runs):
            with isolated(self.seed, "el2n_static", run):
                model = make_model()
                train_models([model], data, self.epochs, self.lr)
                for batch in data:
                    index = sample_index(self, batch.index, batch.rows)
                    norms = gradient_norm(batch.forward(model), batch.targets, batch.inputs)
                    parts.append((index, norms))
        # of process 0, since training on a GPU may differ between processes
        self.scores = distributed.gather(by_sample(parts, self.lr))[0][0]

    def plan(self, run: RunInfo) -> Selection:
        if self.scores is None:
            raise ValueError(
                "StaticEL2N has no scores: call policy.prepare(make_model, ScoredBatches(loader))"
                " before training"
            )
        missing = torch.full((max(0, run.samples - len(self.scores)),), math.inf)
        scores = torch.cat([self.scores, missing]).nan_to_num(nan=math.inf)
        check_samples(self, scores, run)
        kept = torch.zeros(run.samples, dtype=torch.bool)
        kept[scores.topk(max(1, round(self.rate * run.samples))).indices] = True
        return Selection(run.rows[kept[run.rows]])
