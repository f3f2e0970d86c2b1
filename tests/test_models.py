"""Models: sizes worked out by hand, weights that depend on the seed alone, clear refusals."""

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


def slow_vit(model: SimplifiedViT, image: torch.Tensor) -> torch.Tensor:
    """Logits of one image, the layers written out: post-norm, GELU, attention head by head."""
    p = dict(model.named_parameters())

    def dense(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ p[f"{name}weight"].T + p[f"{name}bias"]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        x = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
        return x * p[f"{name}.weight"] + p[f"{name}.bias"]

    _, height, breadth = image.shape
    corners = [(r, c) for r in range(0, height, 4) for c in range(0, breadth, 4)]
    pixels = torch.stack([image[:, r : r + 4, c : c + 4].flatten() for r, c in corners])
    x = torch.cat([p["token"][0], pixels @ p["embed.weight"].flatten(1).T + p["embed.bias"]])
    x = x + p["position"][0]
    for i in range(len(model.encoder.layers)):
        layer = f"encoder.layers.{i}"
        q, k, v = dense(x, f"{layer}.self_attn.in_proj_").chunk(3, dim=1)
        parts = zip(*(part.chunk(8, dim=1) for part in (q, k, v)), strict=True)
        mixed = [(a @ b.T / a.shape[1] ** 0.5).softmax(1) @ c for a, b, c in parts]
        x = x + dense(torch.cat(mixed, dim=1), f"{layer}.self_attn.out_proj.")
        x = norm(x, f"{layer}.norm1")
        hidden = dense(x, f"{layer}.linear1.")
        hidden = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2
        x = norm(x + dense(hidden, f"{layer}.linear2."), f"{layer}.norm2")
    return dense(norm(x[:1], "norm"), "head.")[0]


def test_the_vit_equals_its_layers_written_out() -> None:
    model = SimplifiedViT((2, 8, 12), 5).double()
    for parameter in model.parameters():  # biases and norms start at values that hide mistakes
        nn.init.normal_(parameter, std=0.1)
    images = torch.randn(3, 2, 8, 12, dtype=torch.float64)
    model.eval()
    expected = torch.stack([slow_vit(model, image) for image in images])
    for gradients in (True, False):  # without gradients torch may take another path
        with torch.set_grad_enabled(gradients):
            torch.testing.assert_close(model(images), expected)


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
