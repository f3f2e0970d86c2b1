"""Sizes of an automaton; grids, steps and batches are settings of the task."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from torch import Tensor

from astkit.logic_ca.gates import FIRST_LOGIT, NEIGHBOURS

Boundary = Literal["periodic", "zero"]


def check_grid(boundary: object, fire_rate: object) -> None:
    """Raise ``ValueError`` for a boundary that is unknown, or a share outside (0, 1]."""
    if boundary not in get_args(Boundary):
        known = ", ".join(get_args(Boundary))
        raise ValueError(f"boundary is {boundary!r}: choose one of {known}")
    if not isinstance(fire_rate, float | int) or not 0 < fire_rate <= 1:
        raise ValueError(f"fire_rate is {fire_rate!r}: give a share in (0, 1]")


def check_masks(masks: Tensor | None, fire_rate: float, wanted: list[int]) -> None:
    """Raise ``ValueError`` for a shape other than ``wanted``, or no masks below a rate of 1."""
    if masks is None and fire_rate < 1:
        raise ValueError(
            f"masks is None, but the fire rate is {fire_rate}: draw them with"
            " astkit.logic_ca.tasks.fire_masks"
        )
    if masks is not None and list(masks.shape) != wanted:
        raise ValueError(f"masks has shape {list(masks.shape)}: give {wanted}, a mask per step")


@dataclass(frozen=True)
class LogicCAConfig:
    """Sizes of an automaton; those of the paper's notebook are in `astkit.logic_ca.tasks`.

    Attributes:
        channels: values in [0, 1] per cell.
        kernels: perception kernels; they share their wiring and have their own logits.
        kernel_layers: gates of each layer of a kernel; the first has 8, one per neighbour.
        update_layers: gates of each layer of the update network; the last gives the channels.
        boundary: "periodic", or "zero" for zero padding.
        fire_rate: share of cells updated per step, in (0, 1]; 1 is synchronous.
        first_logit: initial logit of the pass-through gate; those of other gates are 0.
        seed: seed of the wiring.

    Raises ``ValueError`` for incompatible sizes.
    """

    channels: int
    kernels: int
    kernel_layers: tuple[int, ...]
    update_layers: tuple[int, ...]
    boundary: Boundary = "periodic"
    fire_rate: float = 1.0
    first_logit: float = FIRST_LOGIT
    seed: int = 23

    def __post_init__(self) -> None:
        for name in ("kernel_layers", "update_layers"):  # JSON has lists only
            object.__setattr__(self, name, tuple(getattr(self, name)))
        counts = (self.channels, self.kernels, *self.kernel_layers, *self.update_layers)
        if not self.kernel_layers or not self.update_layers or min(counts) < 1:
            raise ValueError(f"{self} has a size below 1 or no layers: give at least 1 of each")
        if self.kernel_layers[0] != len(NEIGHBOURS):
            raise ValueError(
                f"kernel_layers begins with {self.kernel_layers[0]}: begin with {len(NEIGHBOURS)},"
                " a gate per neighbour"
            )
        if self.update_layers[-1] != self.channels:
            raise ValueError(
                f"update_layers ends with {self.update_layers[-1]}: end with the number of"
                f" channels, {self.channels}"
            )
        check_grid(self.boundary, self.fire_rate)
        update = (self.update_inputs, *self.update_layers)
        for inputs, outputs in (*pairwise(self.kernel_layers), *pairwise(update)):
            least, most = -(-inputs // 2), inputs * (inputs - 1) // 2  # all inputs, all pairs
            if not least <= outputs <= most:
                raise ValueError(
                    f"a layer of {outputs} gates cannot follow {inputs} values: give from {least}"
                    f" to {most} gates"
                )

    @property
    def perceived(self) -> int:
        """Outputs of perception: inputs of the update network except the cell's own channels."""
        return self.channels * self.kernels * self.kernel_layers[-1]

    @property
    def update_inputs(self) -> int:
        """Inputs of the update network: the cell's channels and the outputs of perception."""
        return self.channels + self.perceived

    @property
    def gates(self) -> tuple[int, int]:
        """Gates with their own logits: in perception, in the update network."""
        return self.kernels * sum(self.kernel_layers), sum(self.update_layers)

    @property
    def gates_per_cell(self) -> int:
        """Gates evaluated per cell and step: every kernel perceives each channel."""
        perception, update = self.gates
        return self.channels * perception + update
