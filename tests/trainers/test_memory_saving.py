"""Checkpointing changes memory and FLOPs, and nothing else; a kernel is what was asked for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from astkit import models
from astkit.profiling.flops import count_flops
from astkit.profiling.window import peak_tensor_bytes
from astkit.trainers.memory_saving import Checkpointed, _blocks, attention

CASES = [
    ("digits_cnn", {"batch_norm": True}),
    ("simple_cnn", {"batch_norm": True}),
    ("simplified_vit", {"width": 32, "depth": 4}),
]


def made(name: str, options: dict[str, Any], size: int = 8) -> nn.Module:
    return models.build(name, (3, size, size), 10, 0, **options).double()


def images(rows: int = 6, size: int = 8) -> Tensor:
    return torch.randn(rows, 3, size, size, dtype=torch.float64)


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad]))


def largest_difference(first: list[Tensor], second: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("train", [True, False])
def test_gradients_dropout_and_buffers_are_those_of_the_plain_pass(
    name: str, options: dict[str, Any], train: bool
) -> None:
    plain = made(name, options).train(train)
    saving = copy.deepcopy(plain)
    context = Checkpointed(saving)
    for _ in range(2):  # a running average that counts twice differs at the second step
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


def test_running_statistics_are_updated_once() -> None:
    model = made("digits_cnn", {"batch_norm": True})
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    with Checkpointed(model):
        loss = model(images()).sum()
    means = [norm.running_mean for norm in norms]
    before = [(norm.running_mean.clone(), norm.running_var.clone()) for norm in norms]
    loss.backward()
    assert [int(norm.num_batches_tracked) for norm in norms] == [1, 1]
    for norm, mean, (old_mean, old_var) in zip(norms, means, before, strict=True):
        assert norm.running_mean is mean
        assert torch.equal(norm.running_mean, old_mean)
        assert torch.equal(norm.running_var, old_var)


class Counting(nn.Module):
    """Scales by a buffer that it changes in its forward: the second run must find the first's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x * self.calls.clone() * self.weight


def test_the_second_run_finds_the_buffers_of_the_first() -> None:
    model = nn.Sequential(nn.Sequential(nn.Identity(), Counting()), nn.Sequential(Counting()))
    x = torch.ones(2, dtype=torch.float64)
    with Checkpointed(model):
        losses = [model(x).sum(), model(x).sum()]
    # at the n-th call both scale by n, so the output is n² and the gradient of each weight 2n²
    for number in (2, 1):
        losses[number - 1].backward(retain_graph=True)
        model.zero_grad()
        losses[number - 1].backward()
        assert [float(p.grad) for p in model.parameters()] == [2.0 * number**2] * 2
        model.zero_grad()
    assert [float(buffer) for buffer in model.buffers()] == [2.0, 2.0]


def test_nothing_is_left_on_the_model(unchanged: Callable[[nn.Module], Any]) -> None:
    model = made("simplified_vit", {"width": 16, "depth": 2})
    names = [name for name, _ in model.named_modules()]
    before = [set(module.__dict__) for module in model.modules()]
    context = Checkpointed(model)
    with unchanged(model), pytest.raises(KeyError), context, context:
        raise KeyError
    assert [set(module.__dict__) for module in model.modules()] == before
    assert [name for name, _ in model.named_modules()] == names


def test_a_forward_of_the_modules_own_is_kept() -> None:
    model = made("simplified_vit", {"width": 16, "depth": 2}).eval()
    layer = model.get_submodule("encoder.layers.1")
    layer.forward = lambda x, **options: 2 * x
    x = images()
    expected = model(x)
    with Checkpointed(model):
        assert torch.equal(model(x), expected)
    assert "forward" in layer.__dict__
    assert torch.equal(model(x), expected)


def test_a_copy_made_within_runs_its_own_weights() -> None:
    for name, options in CASES:
        model = made(name, options).eval()
        x = images()
        with Checkpointed(model):
            twin = copy.deepcopy(model)
        expected = twin(x)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        assert torch.equal(twin(x), expected)
        assert not torch.equal(model(x), expected)


def test_passes_without_gradients_are_not_checkpointed(monkeypatch: pytest.MonkeyPatch) -> None:
    from astkit.trainers import memory_saving

    monkeypatch.setattr(memory_saving, "checkpoint", lambda *a, **k: pytest.fail("checkpointed"))
    for name, options in CASES:
        model = made(name, options)
        with Checkpointed(model), torch.no_grad():
            assert model(images()).shape == (6, 10)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_only_the_second_forward_is_added_to_the_flops(name: str, options: dict[str, Any]) -> None:
    model = made(name, options)
    x, y = images(), torch.zeros(6, dtype=torch.long)
    plain = count_flops(model, x, y, F.cross_entropy)
    with Checkpointed(model):
        saving = count_flops(model, x, y, F.cross_entropy)
    assert saving.forward == plain.forward
    assert plain.backward < saving.backward <= plain.backward + plain.forward


def peak(model: nn.Module, x: Tensor, saving: bool) -> int:
    def step() -> None:
        with Checkpointed(model) if saving else nullcontext():
            loss = model(x).square().sum()
        loss.backward()

    model.zero_grad()
    return peak_tensor_bytes(step)


@pytest.mark.parametrize(
    ("name", "options", "share"),
    [("simplified_vit", {"width": 64, "depth": 6}, 0.5), ("simple_cnn", {"batch_norm": True}, 0.9)],
)
def test_training_takes_less_memory(name: str, options: dict[str, Any], share: float) -> None:
    model = models.build(name, (3, 32, 32), 10, **options)
    x = torch.randn(16, 3, 32, 32)
    assert peak(model, x, saving=True) < share * peak(model, x, saving=False)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Scaled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def blocks_of(model: nn.Module) -> list[str]:
    names = {module: name for name, module in model.named_modules()}
    return [names[block] for block in _blocks(model)]


def test_blocks_are_found_by_their_shape() -> None:
    assert blocks_of(made("digits_cnn", {})) == [""]
    transformer = made("simplified_vit", {"width": 16, "depth": 2})
    assert blocks_of(transformer) == ["encoder.layers.0", "encoder.layers.1"]
    linear = nn.Linear(3, 3)
    assert blocks_of(nn.Sequential(linear, Residual(), nn.Sequential(Residual()))) == ["1", "2.0"]
    assert blocks_of(nn.ModuleList([Residual(), linear])) == ["0"]
    assert blocks_of(nn.ModuleDict({"a": Residual()})) == ["a.body"]
    assert blocks_of(nn.ModuleDict({"a": Scaled(linear, linear)})) == ["a"]


def test_a_sequential_with_a_forward_of_its_own_keeps_it() -> None:
    model = nn.Sequential(Scaled(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)))
    x = torch.randn(2, 3)
    expected = model(x)
    with Checkpointed(model):
        assert torch.equal(model(x), expected)


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear has no inner blocks to checkpoint: leave"):
        Checkpointed(nn.Linear(2, 2))


def test_a_compiled_model_is_checkpointed_in_one_graph() -> None:
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


def dispatched(call: Callable[[], object]) -> set[str]:
    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            names.add(func.__name__)
            return func(*args, **(kwargs or {}))

    names: set[str] = set()
    with Names():
        call()
    return names


def attend(dropout: float = 0.0) -> Tensor:
    q = torch.ones(1, 1, 16, 16, requires_grad=True)
    return F.scaled_dot_product_attention(q, q, q, dropout_p=dropout)


def test_the_kernel_is_the_one_asked_for() -> None:
    def run(kernel: str) -> bool:
        with attention(kernel):
            return any("flash" in name for name in dispatched(attend))

    assert run("auto")
    assert run("flash")
    assert not run("math")
    assert run("auto")


def test_a_checkpoint_recomputes_with_the_kernel_of_its_forward() -> None:
    model = made("simplified_vit", {"width": 16, "depth": 2, "dropout": 0.0})
    loss: list[Tensor] = []

    def forward() -> None:
        with attention("math"), Checkpointed(model):
            loss.append(model(images()).sum())

    names = dispatched(forward) | dispatched(lambda: loss[0].backward())
    assert "bmm.default" in names
    assert not any("flash" in name for name in names)


def test_a_kernel_that_is_not_there_is_refused() -> None:
    for kernel, sentence in (
        ("fast", "attention is 'fast': choose one of auto, math, flash, efficient"),
        ("efficient", "'efficient', which cpu does not have for float32: choose one of"),
    ):
        with pytest.raises(ValueError, match=sentence), attention(kernel):
            pass


def test_a_kernel_that_refuses_the_model_says_what_to_do() -> None:
    with (
        pytest.warns(UserWarning, match="lash|dropout"),
        pytest.raises(RuntimeError, match=r"'flash', which refused .* set attention to 'auto'"),
        attention("flash"),
    ):
        attend(dropout=0.5)


def test_other_errors_pass_through_and_the_choice_is_undone() -> None:
    with pytest.raises(RuntimeError, match="mine"), attention("math"):
        raise RuntimeError("mine")
    assert torch.backends.cuda.flash_sdp_enabled()
