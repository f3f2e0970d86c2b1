"""Sizes of an automaton; grids, steps and batches belong to the task."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

from astkit.logic_ca.gates import FIRST_LOGIT
from astkit.logic_ca.wiring import NEIGHBOURS

Boundary = Literal["periodic", "zero"]
BOUNDARIES = get_args(Boundary)


@dataclass(frozen=True)
class LogicCAConfig:
    """Sizes of an automaton; those of the presets are the paper's notebook's.

    Attributes:
        channels: values in [0, 1] that a cell holds.
        kernels: perception kernels; they share their wiring and each has logits of its own.
        kernel_layers: gates of each layer of a kernel; the first one has 8, a gate a neighbour.
        update_layers: gates of each layer of the update network; the last one gives the channels.
        boundary: "periodic", or "zero" for a grid with zeros around it.
        fire_rate: share of the cells that change in a step, in (0, 1]; 1 is synchronous.
        first_logit: of the gate that a fresh automaton has everywhere, the one that hands its
            first input on; those of the others are 0.
        seed: of the wiring.

    Raises ``ValueError`` for sizes that do not fit together.
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
        for name in ("kernel_layers", "update_layers"):  # JSON knows lists alone
            object.__setattr__(self, name, tuple(getattr(self, name)))
        counts = (self.channels, self.kernels, *self.kernel_layers, *self.update_layers)
        if not self.kernel_layers or not self.update_layers or min(counts) < 1:
            raise ValueError(f"{self} has a size below 1 or no layers: give at least 1 of each")
        if self.kernel_layers[0] != len(NEIGHBOURS):
            raise ValueError(
                f"kernel_layers begins with {self.kernel_layers[0]}, but its first layer has a gate"
                f" for each of {len(NEIGHBOURS)} neighbours: begin with {len(NEIGHBOURS)}"
            )
        if self.update_layers[-1] != self.channels:
            raise ValueError(
                f"update_layers ends with {self.update_layers[-1]}, but the update gives the"
                f" {self.channels} channels of the new state: end with {self.channels}"
            )
        if self.boundary not in BOUNDARIES:
            raise ValueError(
                f"boundary is {self.boundary!r}: choose one of {', '.join(BOUNDARIES)}"
            )
        if not 0 < self.fire_rate <= 1:
            raise ValueError(f"fire_rate is {self.fire_rate}: give a share in (0, 1]")
        for inputs, outputs in self._layers():
            if not inputs <= 2 * outputs or outputs > inputs * (inputs - 1) // 2:
                raise ValueError(
                    f"a layer of {outputs} gates cannot follow {inputs} values: give from"
                    f" {-(-inputs // 2)} to {inputs * (inputs - 1) // 2} gates"
                )

    @property
    def perceived(self) -> int:
        """Values that perception gives the update network beside the centre's channels."""
        return self.channels * self.kernels * self.kernel_layers[-1]

    @property
    def update_inputs(self) -> int:
        """Inputs of the update network: the centre's channels and what is perceived."""
        return self.channels + self.perceived

    @property
    def gates(self) -> tuple[int, int]:
        """Gates with logits of their own: in perception, in the update network."""
        return self.kernels * sum(self.kernel_layers), sum(self.update_layers)

    @property
    def gates_per_cell(self) -> int:
        """Gates that a cell computes in a step: each channel is perceived by every kernel."""
        perception, update = self.gates
        return self.channels * perception + update

    def to_dict(self) -> dict[str, Any]:
        """The sizes as plain values, for JSON."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def game_of_life(cls, seed: int = 23) -> LogicCAConfig:
        """Game of Life: 2,543 gates."""
        return cls(1, 16, (8, 4, 2, 1), (128,) * 17 + (64, 32, 16, 8, 4, 2, 1), seed=seed)

    @classmethod
    def checkerboard(cls, seed: int = 23) -> LogicCAConfig:
        """Checkerboard, all cells at once: 3,040 gates."""
        return cls(
            8, 16, (8, 4, 2), (256,) * 10 + (128, 64, 32, 16, 8, 8), boundary="zero", seed=seed
        )

    @classmethod
    def checkerboard_async(cls, seed: int = 23) -> LogicCAConfig:
        """Checkerboard, 60 % of the cells at a time: 4,064 gates."""
        update = (256,) * 14 + (128, 64, 32, 16, 8, 8)
        return cls(8, 16, (8, 4, 2), update, boundary="zero", fire_rate=0.6, seed=seed)

    @classmethod
    def checkerboard_small(cls, seed: int = 23) -> LogicCAConfig:
        """A small synchronous checkerboard: 4 kernels, 64 gates a layer."""
        return cls(8, 4, (8, 4, 2), (64,) * 4 + (32, 16, 8), boundary="zero", seed=seed)

    def _layers(self) -> list[tuple[int, int]]:
        """Inputs and gates of each layer that `unique` wires."""
        update = (self.update_inputs, *self.update_layers)
        return [*pairwise(self.kernel_layers), *pairwise(update)]
