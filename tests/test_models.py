"""Models: sizes worked out by hand, weights that depend on the seed alone, clear refusals."""

from typing import Any

import pytest
import torch
from torch import nn

from astkit.models import DigitsCNN, SimpleCNN, SimplifiedViT, build
from astkit.names import REGISTRIES
from tests.build import refused

NAMES = sorted(REGISTRIES["model"])


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_sizes_are_those_worked_out_by_hand() -> None:
    convolutions = [27 * 32 + 32, 288 * 64 + 64, 576 * 128 + 128]
    dense = [64 * 128 * 256 + 256, 256 * 10 + 10]
    assert size(SimpleCNN()) == sum(convolutions + dense) == 2_193_226
    assert size(DigitsCNN()) == (9 * 16 + 16) + (144 * 32 + 32) + (512 * 10 + 10)
    embedding = (48 * 256 + 256) + 65 * 256 + 256
    attention, feed_forward = 256 * 768 + 768 + 256 * 256 + 256, 256 * 512 + 512 + 512 * 256 + 256
    layers = 6 * (attention + feed_forward + 4 * 256)
    assert size(SimplifiedViT()) == embedding + layers + 2 * 256 + 2570 == 3_195_146


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_independent(name: str) -> None:
    # so that training row by row can be held against training in batches
    model = build(name, (1, 8, 8), 10).double().eval()
    x = torch.randn(6, 1, 8, 8, dtype=torch.float64)
    together = model(x)
    torch.testing.assert_close(torch.cat([model(row[None]) for row in x]), together)
    assert (together[0] - together[1]).abs().max().item() > 1e-6


def test_the_vit_has_the_parts_of_the_original() -> None:
    """Patches in reading order after a class token, post-norm layers with GELU; torch's own."""
    model = SimplifiedViT((2, 8, 12), 5).double()
    for parameter in model.parameters():  # biases and norms start at values that hide mistakes
        nn.init.normal_(parameter, std=0.1)
    images, weight = torch.randn(3, 2, 8, 12, dtype=torch.float64), model.embed.weight.flatten(1)
    corners = [(row, column) for row in (0, 4) for column in (0, 4, 8)]
    pixels = [images[:, :, r : r + 4, c : c + 4].flatten(1) @ weight.T for r, c in corners]
    patches = torch.stack(pixels, 1) + model.embed.bias
    tokens = torch.cat([model.token.expand(3, -1, -1), patches], 1) + model.position
    expected = model.eval().head(model.norm(model.encoder(tokens)[:, 0]))
    torch.testing.assert_close(model(images), expected)
    layer: Any = model.encoder.layers[0]
    assert (layer.norm_first, layer.activation, layer.dropout.p) == (False, nn.functional.gelu, 0.1)
    assert (layer.self_attn.num_heads, layer.linear1.out_features) == (8, 512)


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_a_function_of_the_seed(name: str) -> None:
    before = torch.get_rng_state()
    first = build(name, (1, 8, 8), 10, seed=3).state_dict()
    assert torch.get_rng_state().equal(before)  # the global generator is left alone
    torch.rand(5)
    second = build(name, (1, 8, 8), 10, seed=3).state_dict()
    other = build(name, (1, 8, 8), 10, seed=4).state_dict()
    assert all(first[key].equal(second[key]) for key in first)
    assert not all(first[key].equal(other[key]) for key in first)


def test_what_cannot_be_built_is_refused() -> None:
    shape, words = (3, 32, 32), "unknown model 'resnet': choose one of digits_cnn, simp"
    refused((lambda: build("resnet", shape, 10), words))
