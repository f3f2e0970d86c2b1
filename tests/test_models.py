"""Models: sizes worked out by hand, weights that depend on the seed alone, clear refusals."""

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu

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


def test_the_vit_has_the_originals_layers_and_reads_every_patch_into_its_class_token() -> None:
    model = SimplifiedViT((2, 8, 12), 5).double().eval()
    for layer in model.encoder.layers:
        assert (layer.norm_first, layer.activation, layer.dropout.p) == (False, gelu, 0.1)
        assert (layer.self_attn.num_heads, layer.linear1.out_features) == (8, 512)
    images = torch.randn(1, 2, 8, 12, dtype=torch.float64, requires_grad=True)
    tokens: list[torch.Tensor] = []
    model.norm.register_forward_hook(lambda _, inputs, __: tokens.extend(inputs))
    model.encoder.register_forward_hook(lambda _, inputs, out: tokens.extend([*inputs, out]))
    model(images).sum().backward()
    read, encoded, last = tokens
    assert read.shape == (1, 1 + 6, 256)
    torch.testing.assert_close(read[:, 0], (model.token + model.position[:, :1])[:, 0])
    assert torch.equal(last, encoded[:, 0])
    corner = model.embed(images[:, :, 4:8, 4:8]).flatten(1)  # of the fifth patch, row by row
    torch.testing.assert_close(read[:, 5], corner + model.position[:, 5])
    assert images.grad is not None
    assert images.grad.all()


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
