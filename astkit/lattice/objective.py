"""What is trained and towards what: a lattice as a model of rows, and one loss a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from astkit.lattice.model import EnergyFlowLattice
from astkit.lattice.text import TextBridge

_SAME = 0.9999  # cosine from which on another target is the row's own


@dataclass(frozen=True)
class LossWeights:
    """What a row's loss is made of: ``1 - cos``, and each of these times its weight.

    Attributes:
        mse: the mean squared error of the embedding. Cosines, and so all metrics, leave a
            prediction's length alone; with this weight it is learned as well, and first.
        contrast: the cross-entropy of the row's own target among those of other training pairs, at
            ``temperature`` (InfoNCE: van den Oord et al., arXiv 1807.03748). They are the same
            ones for every batch, so a row's loss does not depend on its batch.
        surface: the mean squared error of the surface against the mapped target, through which
            no gradient flows: it would let mapper and surface shrink together.
        text: the decoder's cross-entropy plus ``1 - cos`` of the encoder's embedding; needs a
            task with texts.
        temperature: of the contrast; cosines are divided by it.
        fade: let the contrast's weight fall to 0 in equal parts over the steps. It sets targets
            apart, and so raises their ranks early, but turns predictions away from what all targets
            have in common, which lowers the cosine; the steps without it bring that back.

    Raises ``ValueError`` for a weight below 0, or a temperature that is not above.
    """

    mse: float = 0.0
    contrast: float = 0.0
    surface: float = 0.0
    text: float = 0.0
    temperature: float = 0.05
    fade: bool = False

    def __post_init__(self) -> None:
        for name, weight in vars(self).items():
            if not weight >= 0:
                raise ValueError(f"the weight of {name} is {weight}: give 0 or more")
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}: give a number above 0")


class LatticeRows(nn.Module):
    """A lattice as the trainer wants it: one tensor in, one tensor out, a row a sample.

    In: embeddings ``[B, dim]``; behind them may ride, as whole numbers, which sample a row is (for
    noise) and the tokens of its source (for a bridge): ``[B, dim + 1 + length]``. Out: predictions
    ``[B, dim]``; with ``wide`` the surface behind them and, of a bridge, the loss of its encoder:
    ``[B, dim + cells (+ 1)]``.

    Attributes:
        step: of training, for noise.
    """

    def __init__(
        self, lattice: EnergyFlowLattice, bridge: TextBridge | None = None, wide: bool = False
    ) -> None:
        super().__init__()
        self.lattice, self.bridge, self.wide = lattice, bridge, wide or bridge is not None
        self.step = 0

    def forward(self, x: Tensor) -> Tensor:
        dim = self.lattice.config.dim
        embedding = x[:, :dim]
        ids = x[:, dim].long() if x.shape[1] > dim else None
        found = self.lattice(embedding, sample_ids=ids, step=self.step)
        if not self.wide:
            return found.y
        parts = [found.y, found.surface]
        if self.bridge is not None:
            encoded = self.bridge.encoder(x[:, dim + 1 :].long())
            parts.append(1 - F.cosine_similarity(encoded, embedding)[:, None])
        return torch.cat(parts, 1)


class LatticeLoss:
    """The criterion of ``rows``: outputs and targets as `LatticeRows` lays them out, to ``[B]``.

    Args:
        rows: the model; its ``step`` says how far the contrast has faded.
        weights: of the parts.
        others: ``[K, dim]``, the targets that a row's own is told from by the contrast.
        steps: of the run.
    """

    def __init__(
        self,
        rows: LatticeRows,
        weights: LossWeights,
        others: Tensor | None = None,
        steps: int = 1,
    ) -> None:
        self.rows, self.weights, self.steps = rows, weights, steps
        self._others = None if others is None else F.normalize(others)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        weights, config = self.weights, self.rows.lattice.config
        y, wanted = outputs[:, : config.dim], targets[:, : config.dim]
        cosine = F.cosine_similarity(y, wanted)
        losses = 1 - cosine + weights.mse * (y - wanted).square().mean(1)
        if self._others is not None:
            left = max(0.0, 1 - self.rows.step / self.steps) if weights.fade else 1.0
            losses = losses + left * weights.contrast * self._contrast(y, wanted, cosine)
        surface = outputs[:, config.dim : config.dim + config.cells]
        if weights.surface:
            mapped = self.rows.lattice.surface_target(wanted)
            losses = losses + weights.surface * (surface - mapped).square().mean(1)
        if self.rows.bridge is not None:
            spoken = self.rows.bridge.word_losses(surface, targets[:, config.dim :].long())
            losses = losses + weights.text * (spoken + outputs[:, -1])
        return losses

    def _contrast(self, y: Tensor, wanted: Tensor, cosine: Tensor) -> Tensor:
        assert self._others is not None
        others = self._others = self._others.to(y.device)
        same = F.normalize(wanted) @ others.T > _SAME
        logits = (F.normalize(y) @ others.T).masked_fill(same, -torch.inf)
        own = cosine[:, None] / self.weights.temperature
        return torch.cat([own, logits / self.weights.temperature], 1).logsumexp(1) - own[:, 0]
