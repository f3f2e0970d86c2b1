"""Proxy top-k: what the proxy keeps, when it trains, and the published sum of losses."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

from astkit.gating.policies.proxy_topk import ProxyTopK
from tests.gating.policies.recorded import linear


def batches(count: int = 9) -> list[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(count, 12, 6, generator=random)
    return [(part, part[:, :3].argmax(1)) for part in x]


def test_it_equals_the_published_rule() -> None:
    proxy, model = linear(1), linear(2)
    policy, twin = ProxyTopK(0.5, proxy=proxy, every=4, lr=0.1), copy.deepcopy(proxy)
    optimizer, before = torch.optim.AdamW(twin.parameters(), 0.1), torch.get_rng_state()
    for number, (x, y) in enumerate(batches()):
        chosen = policy(model, x, y)
        losses = F.cross_entropy(twin(x), y, reduction="none")
        mask = torch.zeros(12, dtype=torch.bool)
        mask[losses.argsort()[-6:]] = True
        assert sorted(chosen.index.tolist()) == mask.nonzero().flatten().tolist()
        if number % 4 == 0:
            optimizer.zero_grad()
            (losses * mask).sum().backward()  # the scale of a loss does not change AdamW's step
            optimizer.step()
        own = F.cross_entropy(model(x), y, reduction="none").detach()
        assert chosen.mean(own[chosen.index]).item() == pytest.approx(float(own[mask].sum()) / 12)
    torch.testing.assert_close(policy._model.weight, twin.weight, rtol=1e-4, atol=1e-5)
    assert torch.get_rng_state().equal(before)
    assert proxy.weight.equal(linear(1).weight)  # the one that was given stays as it is


def test_a_proxy_that_diverges_is_refused() -> None:
    proxy, (batch,) = linear(), batches(1)
    proxy.weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"helper model has diverged: .*so lower lr=0\.001"):
        ProxyTopK(proxy=proxy)(linear(), *batch)


def test_policies_of_one_state_train_apart() -> None:
    model, (first, *others) = linear(2), [ProxyTopK(every=1, lr=0.1) for _ in range(3)]
    for x, y in batches(3):
        first(model, x, y)
    state = first.state_dict()
    expected = [first(model, x, y).index.tolist() for x, y in batches()]
    for other in others:
        other.load_state_dict(state)
    for other in others:
        assert [other(model, x, y).index.tolist() for x, y in batches()] == expected


def test_by_default_the_proxy_begins_as_the_model_does() -> None:
    model = linear(3)
    policy, given = ProxyTopK(lr=0.1), ProxyTopK(proxy=linear(3), lr=0.1)
    for x, y in batches(5):
        assert policy(model, x, y).index.equal(given(model, x, y).index)
        with torch.no_grad():
            model.weight += 1
