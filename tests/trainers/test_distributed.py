"""Several processes train as one does: gradients, thresholds, plans, counts, and what fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from astkit import (
    Budget,
    Gate,
    TrainConfig,
)
from astkit.gating import CachedLoss, DeviceGate, InfoBatch, ProxyTopK
from tests.trainers.worlds import gated, in_world, joined, looped, network, numbers, trained

CRITERION = nn.CrossEntropyLoss(reduction="none")
PLANNING = ("auto", "cached_loss", "infobatch", "kakurenbo", "rcap", "repb", "seta")
CHOOSING = ("gradnorm_is", "proxy_topk", "rho", "selective_backprop")


def everything() -> tuple[Any, ...]:
    """One short run of each kind, for the fast test."""
    planned = trained(InfoBatch(), {"validation": numbers(50, seed=1)})
    after = trained(Gate(0.3, fallback=0), {"dtype": torch.float64, "epochs": 1})
    return planned, after, looped(CachedLoss(0.5)), gated(Gate(0.3, fallback=0), 8)


def gradient(found: list[dict[str, Any]], step: int = 0, dtype: Any = torch.float64) -> Tensor:
    """Weights after one step of one process on the rows that all processes selected."""
    model, data = network(dtype, wrapped=False), numbers(96, dtype)
    loss, total = torch.zeros((), dtype=dtype), 0.0
    for each in found:
        rows, (weight, normaliser, _) = torch.tensor(each["rows"][step]), each["seen"][step]
        x, y = data[rows]
        loss = loss + (CRITERION(model(x), y) * weight.to(dtype)).sum()
        total += normaliser
    (loss / total).backward()
    return torch.cat([(p.detach() - p.grad).flatten() for p in model.parameters()])  # type: ignore[operator]


def test_two_processes_train_as_one_does() -> None:
    (plan, gate, loop, loose), *rest = in_world(1, everything)
    assert not rest
    found = in_world(2, everything)
    for planned, after, own, light in found:
        assert (planned["weights"] - plan["weights"]).abs().max() < 1e-12
        assert planned["validated"] == pytest.approx(plan["validated"], rel=1e-12)
        for part in ("samples", "flops", "flops_dense"):
            assert planned["ledger"][part] == plan["ledger"][part]
        assert torch.equal(planned["policy"]["losses"], found[0][0]["policy"]["losses"])
        assert torch.allclose(planned["policy"]["losses"], plan["policy"]["losses"])
        assert [s[2] for s in after["seen"]] == [s[2] for s in gate["seen"]]
        assert (after["weights"] - gate["weights"]).abs().max() < 1e-12
        assert (own["weights"] - loop["weights"]).abs().max() < 1e-12
        assert light["thresholds"] == loose["thresholds"]
    for step, rows in enumerate(plan["rows"]):
        assert joined(planned["rows"][step] for planned, *_ in found) == rows


@pytest.mark.full
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("policy", [None, Gate(0.2), DeviceGate(0.3), ProxyTopK(0.5), *CHOOSING])
def test_gradients_are_those_of_one_process_on_the_same_rows(
    world: int, dtype: torch.dtype, error: float, policy: Any
) -> None:
    if policy == "selective_backprop":
        policy = {"name": policy, "start": 0, "end": 1}
    found = in_world(
        world,
        trained,
        policy,
        {
            "dtype": dtype,
            "budget": Budget(steps=1),
            "epochs": None,
            "config": TrainConfig(clip_norm=None, schedule="constant"),
        },
    )
    expected = gradient(found, 0, dtype)
    for each in found:
        assert each["spent"] == 1
        assert (each["weights"] - expected).abs().max() < error * max(
            1.0, float(expected.abs().max())
        )
    rows = joined(each["rows"][0] for each in found)
    assert policy is not None or len(rows) == len(set(rows)) == 24


@pytest.mark.full
@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("policy", [*PLANNING, "random"])
def test_a_planning_policy_makes_the_same_plans_in_any_number_of_processes(
    world: int, policy: str
) -> None:
    options = {"name": policy, **({"rate": 0.4} if policy == "random" else {})}
    # 24 rows in 5 processes are unequal shares; of fewer than 5 rows, some are repeated
    settings = {"epochs": 4, "validation": numbers(50, seed=1)}
    (one,) = in_world(1, trained, options, settings)
    many = in_world(world, trained, options, settings)
    for each in many:
        assert (each["weights"] - one["weights"]).abs().max() < 1e-9
        assert each["validated"] == pytest.approx(one["validated"], rel=1e-9)
    for step, rows in enumerate(one["rows"]):
        together = joined(each["rows"][step] for each in many)
        assert together == rows or (len(rows) < world and set(together) == set(rows))
