"""A small task, and the kit's own loop as the reference of the other libraries' loops."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from astkit import Budget, Gate, Policy, RandomSubset, TrainConfig, Trainer
from astkit.gating.policies.infobatch import InfoBatch
from tests import build

N, BATCH, LR = 90, 8, 0.1
X = torch.randn(N, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, :3] + 0.3 * X[:, 3:]).argmax(1)
PAIRS = TensorDataset(X, Y)
POLICIES: dict[str, Any] = {
    "dense": lambda: RandomSubset(1.0),
    "random": lambda: RandomSubset(0.4),
    "infobatch": lambda: InfoBatch(delta=0.8),
    "rounds": lambda: _rounds(InfoBatch(delta=0.8)),
}


def _rounds(policy: Policy) -> Policy:
    policy.rounds = 3
    return policy


def make_model(seed: int = 0) -> nn.Sequential:
    return build.network(6, 3, 8, nn.LayerNorm(8), nn.ReLU(), seed=seed)


def rows_of(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none")


def own_loop(
    policy: Policy | Gate,
    data: Any = PAIRS,
    model: Any = None,
    batch_size: int = BATCH,
    criterion: Any = None,
    **budget: Any,
) -> Any:
    """A copy of the model as trained by `Trainer` with plain SGD."""
    model = make_model() if model is None else copy.deepcopy(model)
    Trainer(
        model,
        data,
        policy=policy,
        budget=Budget(**budget),
        batch_size=batch_size,
        optimizer=torch.optim.SGD(model.parameters(), LR),
        config=TrainConfig(schedule="constant", clip_norm=None),
        device="cpu",
        **({} if criterion is None else {"criterion": criterion}),
    ).run()
    return model


def assert_same(model: nn.Module, twin: nn.Module, atol: float = 1e-6) -> None:
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=atol, msg=name)
