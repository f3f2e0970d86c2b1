"""Small automata with gates of all kinds, in float64."""

import torch

from astkit import rng
from astkit.systems.automaton.automaton import LogicCA, LogicCAConfig
from astkit.systems.automaton.tasks import fire_masks

SYNC = LogicCAConfig(2, 3, (8, 4, 2), (9, 7, 4, 2), boundary="zero")
PERIODIC = LogicCAConfig(1, 2, (8, 4, 2, 1), (3, 2, 1))
ASYNC = LogicCAConfig(2, 3, (8, 4, 2), (9, 7, 4, 2), boundary="zero", fire_rate=0.6)
ACTIVE = torch.tensor([1, 2, 4, 6, 7, 8, 9, 11, 13, 14])  # gates that need both of their inputs
CONFIGS = {"sync": SYNC, "periodic": PERIODIC, "async": ASYNC}


def trained(config: LogicCAConfig, seed: int = 0, spread: float = 2.0) -> LogicCA:
    """An automaton whose logits are random, as they would be after some training."""
    model = LogicCA(config).double()
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            noise = torch.randn(parameter.shape, generator=rng.generator(seed, "logits", i))
            parameter.copy_(spread * noise)
    return model


def drawn(config: LogicCAConfig) -> LogicCA:
    """An automaton of random `ACTIVE` gates."""
    model = LogicCA(config)
    for number, logits in enumerate(model.parameters()):
        random = rng.generator(3, "ops", number)
        chosen = ACTIVE[torch.randint(len(ACTIVE), (*logits.shape[:-1], 1), generator=random)]
        logits.data.zero_().scatter_(-1, chosen, 10.0)
    return model


def inputs(config: LogicCAConfig, batch: int, size: tuple[int, int] = (5, 4)) -> torch.Tensor:
    """Random states in [0, 1), float64."""
    shape = (batch, config.channels, *size)
    return torch.rand(shape, dtype=torch.float64, generator=rng.generator(batch, "states"))


def masks_of(config: LogicCAConfig, steps: int, x: torch.Tensor) -> torch.Tensor | None:
    """Fire masks for ``x``, where the automaton wants them."""
    if config.fire_rate == 1:
        return None
    return fire_masks(config.fire_rate, (steps, 1, *x.shape[2:]), range(len(x)), 1, 0)


def half_hard(config: LogicCAConfig) -> torch.Tensor:
    """Which gates are hard: about half of them, bool ``[gates]``."""
    return torch.rand(sum(config.gates), generator=rng.generator("half hard")) < 0.5
