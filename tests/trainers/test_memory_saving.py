"""Checkpointing changes memory and FLOPs, and nothing else; a kernel is what was asked for."""

from __future__ import annotations

import copy
from contextlib import nullcontext, suppress

import pytest
import torch
import torch.nn.functional as F
from astkit.profiling.window import peak_tensor_bytes
from astkit.trainers.memory_saving import Checkpointed, _blocks, attention
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from astkit import models
from astkit.profiling.flops import count_flops
from astkit.trainers import memory_saving

CASES = [
    ("digits_cnn", {"batch_norm": True}),
    ("simple_cnn", {"batch_norm": True}),
    ("simplified_vit", {"width": 16, "depth": 3}),
]


def made(name, options):
    return models.build(name, (3, 8, 8), 10, 0, **options).double()


def images(rows=6):
    return torch.randn(rows, 3, 8, 8, dtype=torch.float64)


def gradients(model, loss):
    return list(torch.autograd.grad(loss, list(model.parameters())))


def largest_difference(first, second):
    return max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(("name", "options"), CASES)
def test_gradients_dropout_and_buffers_are_those_of_the_plain_pass(name, options):
    plain = made(name, options)
    saving = copy.deepcopy(plain)
    context = Checkpointed(saving)
    for train in (True, True, False):  # a running average that counts twice differs at the second
        plain.train(train)
        saving.train(train)
        x = images()
        with torch.random.fork_rng():
            expected = plain(x)
            wanted = gradients(plain, expected.square().sum())
            after = torch.rand(1)
        with torch.random.fork_rng():
            with context:
                outputs = saving(x)
            found = gradients(saving, outputs.square().sum())
            assert torch.equal(torch.rand(1), after)
        assert torch.equal(outputs, expected)
        assert largest_difference(found, wanted) < 1e-12
    state, reference = saving.state_dict(), plain.state_dict()
    assert list(state) == list(reference)
    assert all(torch.equal(state[key], reference[key]) for key in reference)


class Counting(nn.Module):
    """Scales by a buffer that it changes in its forward: the second run must find the first's."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        self.calls.add_(1)
        return x * self.calls.clone() * self.weight


def test_the_second_run_finds_the_buffers_of_the_first():
    model = nn.Sequential(nn.Sequential(nn.Identity(), Counting()), nn.Sequential(Counting()))
    before, x = list(model.buffers()), torch.ones(2, dtype=torch.float64)
    with Checkpointed(model):
        losses = [model(x).sum(), model(x).sum()]
    # at the n-th call both scale by n, so the output is n² and the gradient of each weight 2n²
    for number in (2, 1):
        losses[number - 1].backward()
        assert [float(p.grad) for p in model.parameters()] == [2.0 * number**2] * 2
        model.zero_grad()
    assert [float(buffer) for buffer in model.buffers()] == [2.0, 2.0]
    assert all(now is then for now, then in zip(model.buffers(), before, strict=True))


def test_nothing_is_left_on_the_model(unchanged):
    model = made("simplified_vit", {"width": 16, "depth": 2}).eval()
    layer = model.get_submodule("encoder.layers.1")
    layer.forward = lambda x, **options: 2 * x  # a forward of the module's own is kept
    before = [set(module.__dict__) for module in model.modules()]
    x = images()
    expected, context = model(x), Checkpointed(model)
    with unchanged(model), suppress(KeyError), context:
        assert torch.equal(model(x), expected)
        raise KeyError
    assert [set(module.__dict__) for module in model.modules()] == before
    assert torch.equal(model(x), expected)


def test_passes_without_gradients_are_not_checkpointed(monkeypatch):
    monkeypatch.setattr(memory_saving, "checkpoint", lambda *a, **k: pytest.fail("checkpointed"))
    for name, options in CASES:
        model = made(name, options)
        with Checkpointed(model), torch.no_grad():
            assert model(images()).shape == (6, 10)


def test_only_the_second_forward_is_added_to_the_flops():
    for name, options in CASES:
        model = made(name, options)
        x, y = images(), torch.zeros(6, dtype=torch.long)
        plain = count_flops(model, x, y, F.cross_entropy)
        with Checkpointed(model):
            saving = count_flops(model, x, y, F.cross_entropy)
        assert saving.forward == plain.forward
        assert plain.backward < saving.backward <= plain.backward + plain.forward


@pytest.mark.parametrize(
    ("name", "options", "share"),
    [("simplified_vit", {"width": 32, "depth": 6}, 0.5), ("simple_cnn", {"batch_norm": True}, 0.9)],
)
def test_training_takes_less_memory(name, options, share):
    model, x = models.build(name, (3, 32, 32), 10, **options), torch.randn(8, 3, 32, 32)

    def peak(context):
        def step():
            with context:
                loss = model(x).square().sum()
            loss.backward()

        model.zero_grad()
        return peak_tensor_bytes(step)

    assert peak(Checkpointed(model)) < share * peak(nullcontext())


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def forward(self, x):
        return x + self.body(x)


class Scaled(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


def test_blocks_are_found_by_their_shape():
    def blocks_of(model):
        names = {module: name for name, module in model.named_modules()}
        return [names[block] for block in _blocks(model)]

    linear = nn.Linear(3, 3)
    transformer = made("simplified_vit", {"width": 16, "depth": 2})
    assert blocks_of(transformer) == ["encoder.layers.0", "encoder.layers.1"]
    assert blocks_of(nn.Sequential(linear, Residual(), nn.Sequential(Residual()))) == ["1", "2.0"]
    assert blocks_of(nn.ModuleList([Residual(), linear])) == ["0"]
    for model in (nn.Linear(2, 2), nn.Sequential(linear), Scaled(linear, nn.Tanh())):
        with pytest.raises(ValueError, match=r"\w+ has no inner blocks to checkpoint: leave"):
            Checkpointed(model)


@pytest.mark.full
def test_a_compiled_model_is_checkpointed_in_one_graph():
    from torch._dynamo.utils import counters

    model = made("digits_cnn", {"batch_norm": True})
    plain = copy.deepcopy(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager")
    context, before = Checkpointed(model), counters["stats"]["unique_graphs"]
    for _ in range(2):
        x = images()
        with context:
            outputs = compiled(x)
        found = gradients(model, outputs.square().sum())
        assert largest_difference(found, gradients(plain, plain(x).square().sum())) < 1e-12
    assert counters["stats"]["unique_graphs"] - before == 1
    state = model.state_dict()
    assert all(torch.allclose(state[key], value) for key, value in plain.state_dict().items())
    torch._dynamo.reset()


def uses_flash(call):
    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.add(func.__name__)
            return func(*args, **(kwargs or {}))

    names = set()
    with Names():
        call()
    return any("flash" in name for name in names)


def attend(dropout=0.0):
    q = torch.ones(1, 1, 16, 16, requires_grad=True)
    return F.scaled_dot_product_attention(q, q, q, dropout_p=dropout)


def test_the_kernel_is_the_one_asked_for():
    for kernel, flash in {"auto": True, "flash": True, "math": False}.items():
        with attention(kernel):
            assert uses_flash(attend) == flash
    assert uses_flash(attend)


def test_a_checkpoint_recomputes_with_the_kernel_of_its_forward():
    model, loss = made("simplified_vit", {"width": 16, "depth": 2, "dropout": 0.0}), []

    def forward():
        with attention("math"), Checkpointed(model, "math"):
            loss.append(model(images()).sum())

    assert not uses_flash(forward)
    assert not uses_flash(lambda: loss[0].backward())


@pytest.mark.filterwarnings("ignore:")  # torch's reasons, one warning each
def test_a_kernel_that_does_not_support_the_model_says_what_to_do():
    for kernel, dropout in (("flash", 0.5), ("efficient", 0.0)):
        with (
            pytest.raises(RuntimeError, match=rf"'{kernel}', which .* set attention to 'auto'"),
            attention(kernel),
        ):
            attend(dropout)
    with pytest.raises(RuntimeError, match="mine"), attention("math"):
        raise RuntimeError("mine")
    assert torch.backends.cuda.flash_sdp_enabled()
