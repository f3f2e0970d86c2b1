"""FLOP counts against numbers that can be worked out by hand, and no traces left behind."""

import copy
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import flop_counter
from torch.utils.data import TensorDataset

from astkit import Trainer
from astkit.datasets.batch import Args, Batch
from astkit.profiling.flops import (
    BatchFlops,
    Costs,
    FlopCounter,
    PassFlops,
    count_flops,
    formulas,
    shape_of,
)
from tests import build
from tests.trainers.states import same


class Attention(nn.Module):
    """Self-attention over [batch, tokens, width], mean over tokens, then classes."""

    def __init__(self, width: int = 16, heads: int = 2, classes: int = 4) -> None:
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.head(mixed.transpose(1, 2).reshape(batch, tokens, width).mean(1))


class Recurrent(nn.Module):
    """The outputs of an RNN over [batch, steps, 4], flat."""

    def __init__(self, kind: Callable[..., nn.Module], **options: object) -> None:
        super().__init__()
        self.rnn, self.first = kind(4, 5, **options), options.get("batch_first")

    def forward(self, x: Tensor) -> Tensor:
        out = self.rnn(x if self.first else x.transpose(0, 1))[0]
        return (out if self.first else out.transpose(0, 1)).flatten(1)


def small_cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.5),
        nn.Conv2d(8, 16, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 2 * 2, 10),
    )


def images(rows: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 1, 8, 8), torch.arange(rows) % 10


def test_a_linear_layer_costs_two_flops_a_multiply_add() -> None:
    x, y = torch.randn(10, 64), torch.zeros(10, dtype=torch.long)
    flops = count_flops(nn.Linear(64, 32), x, y, F.cross_entropy)
    assert flops.forward(10) == 40_960
    # the input needs no gradient, so the backward is the weight's alone
    assert flops == BatchFlops(PassFlops(4096.0), PassFlops(4096.0), PassFlops(4096.0))
    assert flops.training(3) == 3 * 8192
    assert flops.training(0) == 0


def test_a_sample_costs_the_same_in_any_batch_and_grad_mode() -> None:
    model = small_cnn().eval()
    expected = count_flops(model, *images(4), F.cross_entropy)
    for rows in (1, 32):
        assert count_flops(model, *images(rows), F.cross_entropy) == expected
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert count_flops(model, *images(), F.cross_entropy) == expected


def test_frozen_parameters_cost_no_backward() -> None:
    model = small_cnn()
    whole = count_flops(model, *images(), F.cross_entropy)
    for layer in list(model)[:-1]:
        layer.requires_grad_(False)
    head = count_flops(model, *images(), F.cross_entropy)
    assert (head.forward, head.backward(1)) == (whole.forward, 2 * 64 * 10)
    model.requires_grad_(False)
    assert count_flops(model, *images(), F.cross_entropy).backward(1) == 0


def test_attention_is_counted_as_the_math_backend_counts_it() -> None:
    model, x, y = Attention(), torch.randn(4, 9, 16), torch.zeros(4, dtype=torch.long)
    fused = count_flops(model, x, y, F.cross_entropy)
    with sdpa_kernel(SDPBackend.MATH):
        plain = count_flops(model, x, y, F.cross_entropy)
    product = 2 * 9 * 9 * 16
    projections = 2 * 9 * 16 * 48 + 2 * 16 * 4
    assert fused.forward(1) == plain.forward(1) == projections + 2 * product
    # the fused kernel keeps no scores, so its backward computes them again
    assert fused.backward(1) == plain.backward(1) + product
    assert fused.uncounted == plain.uncounted == ()


@pytest.mark.parametrize("training", [True, False])
def test_the_fused_transformer_layer_is_counted(training: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).train(training)
    tokens = torch.randn(2, 5, 8)
    fastpath = torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad(), FlopCounter() as counted:
        layer(tokens)
    per_row = 2 * 5 * 8 * (24 + 8 + 16 + 16) + 2 * (2 * 5 * 5 * 8)
    assert counted.get_total_flops() == 2 * per_row
    assert counted.uncounted() == set()
    assert torch.backends.mha.get_fastpath_enabled() == fastpath


GATES = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}
STEPS = 7


def by_hand(kind: type, layers: int, directions: int, proj: int, fused: bool) -> tuple[int, int]:
    """Forward and backward FLOPs of one row through an RNN of 5 units over 4 inputs."""
    gates, state = 5 * GATES[kind], proj or 5
    forward = backward = 0
    for layer in range(layers):
        width = directions * state if layer else 4
        for step in range(STEPS):
            for rows, columns, wanted in (
                (gates, width, layer > 0),  # the data need no gradient,
                (gates, state, step > 0),  # nor does the first state
                (proj, 5, True),
            ):
                product = 2 * rows * columns * directions
                forward += product
                backward += product * (1 + (wanted or fused))
    return forward, backward


def total(outputs: Tensor, y: Tensor) -> Tensor:
    return outputs.sum(1)


@pytest.mark.parametrize(
    ("kind", "layers", "options"),
    [
        (nn.LSTM, 2, {"bidirectional": True, "batch_first": True}),
        (nn.LSTM, 1, {"bias": False}),
        (nn.LSTM, 2, {"proj_size": 3}),
        (nn.GRU, 2, {"bias": False, "batch_first": True}),
        (nn.GRU, 1, {"bidirectional": True}),
        (nn.RNN, 2, {"bidirectional": True}),
        (nn.RNN, 1, {}),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_recurrent_layers_agree_with_a_count_by_hand(kind, layers, options):
    model, x = Recurrent(kind, num_layers=layers, **options), torch.randn(4, STEPS, 4)
    directions, proj = 1 + options.get("bidirectional", 0), options.get("proj_size", 0)
    # oneDNN, which computes all gradients, has LSTMs without projections, of float32
    for dtype in (torch.float32, torch.float64):
        fused = kind is nn.LSTM and not proj and dtype is torch.float32
        flops = count_flops(model.to(dtype), x.to(dtype), x, total)
        expected = by_hand(kind, layers, directions, proj, fused)
        assert (flops.forward(1), flops.backward(1)) == expected
        assert flops.uncounted == ()


@pytest.mark.parametrize("kind", GATES)
def test_packed_sequences_cost_their_real_steps(kind: type) -> None:
    model, x = kind(4, 5, batch_first=True), torch.randn(3, STEPS, 4)
    packed = nn.utils.rnn.pack_padded_sequence(x, [7, 5, 2], batch_first=True)
    for context in (torch.no_grad, torch.inference_mode):
        with context(), FlopCounter() as counted:
            model(packed)
        assert counted.get_total_flops() == (7 + 5 + 2) * by_hand(kind, 1, 1, 0, False)[0] // STEPS


def formula(name: str, **values: object) -> int:
    """The formula of an operation, called with shapes at the places where its schema has them."""
    op = getattr(torch.ops.aten, name)
    places = [argument.name for argument in op.default._schema.arguments]
    assert values.keys() <= set(places)
    return formulas()[op](*map(values.get, places), out_shape=None)


def test_recurrent_layers_of_cudnn_are_counted() -> None:
    layers = nn.LSTM(4, 5, 2, bidirectional=True, proj_size=3)
    weights = [tuple(weight.shape) for weight in layers._flat_weights]
    forward = 2 * by_hand(nn.LSTM, 2, 2, 3, True)[0]
    for x in ((7, 2, 4), (14, 4)):
        assert formula("_cudnn_rnn", input=x, weight=weights) == forward
        for wanted, products in ((True, 2), (False, 1)):
            mask = [False, False, False, wanted]
            cost = formula("_cudnn_rnn_backward", input=x, weight=weights, output_mask=mask)
            assert cost == products * forward


def test_products_without_a_formula_in_torch_are_counted() -> None:
    m, v = torch.randn(3, 4), torch.randn(4)
    batch = torch.randn(5, 3, 4)
    ints, stack = torch.ones(32, 32, dtype=torch.int8), torch.randn(2, 16, 8)
    ends = torch.tensor([16, 32], dtype=torch.int32)
    for product, flops in (
        (lambda: m @ v, 2 * 12),
        (lambda: v @ v, 2 * 4),
        (lambda: torch.vdot(v, v), 2 * 4),
        (lambda: torch.addmv(torch.zeros(3), m, v), 2 * 12),
        (lambda: torch.zeros(3).addmv_(m, v), 2 * 12),
        (lambda: torch.zeros(3, 3).addmm_(m, m.T), 2 * 36),
        (lambda: torch.zeros(5, 3, 3).baddbmm_(batch, batch.mT), 2 * 5 * 36),
        (lambda: torch.addbmm(torch.zeros(3, 3), batch, batch.mT), 2 * 5 * 36),
        (lambda: torch._int_mm(ints, ints), 2 * 32**3),
        (lambda: torch._grouped_mm(torch.randn(32, 16), stack, ends), 2 * 32 * 16 * 8),
        (lambda: torch._grouped_mm(stack.mT, stack), 2 * 2 * 8 * 16 * 8),
        (lambda: torch._grouped_mm(stack.mT, torch.randn(16, 32), ends), 2 * 8 * 16 * 32),
    ):
        with FlopCounter() as counted:
            product()
        assert (counted.get_total_flops(), counted.uncounted()) == (flops, set())


@pytest.mark.filterwarnings("ignore:FlopCounterMode does not have a registered FLOP formula")
def test_what_has_no_formula_is_listed() -> None:
    m, ints = torch.randn(4, 4), torch.ones(4, 4, dtype=torch.int8)
    with FlopCounter() as counted:
        F.bilinear(m, m, torch.randn(2, 4, 4))
        torch.fft.fft(m)
        torch.linalg.inv(m)
        torch.ops.higher_order.out_dtype(torch.ops.aten.mm.default, torch.int32, ints, ints)
    assert counted.get_total_flops() == 0
    assert counted.uncounted() == {"_fft_r2c", "_trilinear", "linalg_inv_ex", "out_dtype"}
    with counted:
        m @ m
    assert (counted.get_total_flops(), counted.uncounted()) == (2 * 4**3, set())


class Jagged(nn.Module):
    """A linear layer over the tokens of rows of different lengths, as a jagged nested tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.nested.nested_tensor(
            [row[: 1 + i] for i, row in enumerate(x)], layout=torch.jagged
        )
        return self.layer(rows).to_padded_tensor(0.0).sum(1)


def test_a_model_that_only_the_counter_refuses_is_uncounted() -> None:
    model, x, y = Jagged(), torch.randn(5, 6, 4), torch.tensor([0, 1, 2, 0, 1])
    unknown = ("this model (TypeError in the counter)",)
    assert count_flops(model, x, y, F.cross_entropy) == BatchFlops(*[PassFlops()] * 3, unknown)
    assert model.layer.weight.grad is None
    trainer = Trainer(model, TensorDataset(x, y), epochs=1, batch_size=5)
    with pytest.warns(UserWarning, match="FLOPs of this model .* cannot be counted"):
        trainer.run()
    with pytest.raises(ValueError, match=r"refused .* cannot be multiplied"):  # its own mistake
        Trainer(nn.Linear(5, 3), TensorDataset(x[:, 0], y), epochs=1, batch_size=5).run()


class Keyed(nn.Module):
    """A linear layer over the mean of ``pixels`` and ``others``; returns an object."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, pixels: Tensor, others: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.layer((pixels + others) / 2))


def test_any_batch_and_any_criterion_count_the_same() -> None:
    x, y = torch.randn(5, 8), torch.tensor([0, 1, 2, 0, 1])
    expected = count_flops(nn.Linear(8, 3), x, y, F.cross_entropy)

    def losses(outputs: SimpleNamespace, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs.logits, labels, reduction="none")

    def masked(outputs: SimpleNamespace, labels: Tensor) -> tuple[Tensor, Tensor]:
        return losses(outputs, labels), labels > 0

    class Popping(Keyed):
        def forward(self, batch: Any) -> SimpleNamespace:  # type: ignore[override]
            del batch["labels"]
            return super().forward(batch.pop("pixels"), batch["others"])

    whole = {"pixels": x, "others": x, "labels": y, "names": list("abcde")}
    nested = {"labels": [y], "weight": 1.0}

    def of_batch(outputs: SimpleNamespace, batch: Any) -> Tensor:
        return losses(outputs, batch["labels"])

    for inputs, targets, criterion in (
        (Args((x, x)), y, losses),
        (Args((x, x)), y, masked),
        (whole, whole, of_batch),
        (Args((x, x)), nested, lambda outputs, batch: masked(outputs, batch["labels"][0])),
    ):
        assert count_flops(Keyed(), inputs, targets, criterion) == expected
    assert count_flops(Popping(), whole, whole, of_batch) == expected
    assert len(whole) == 4


def embedding() -> nn.Sequential:
    """Its first layer renormalises its own weights in a forward pass."""
    return nn.Sequential(nn.Embedding(6, 4, max_norm=0.1), nn.Flatten(), nn.Linear(12, 3))


def traces(model: nn.Module) -> dict[str, object]:
    """What counting could leave behind in a model, and in the generator of random numbers."""
    return copy.deepcopy(
        {
            "state": dict(model.state_dict()),
            "grads": [parameter.grad for parameter in model.parameters()],
            "modes": [module.training for module in model.modules()],
            "random": torch.get_rng_state(),
        }
    )


@pytest.mark.parametrize("made", [small_cnn, embedding])
def test_nothing_is_left_behind(made: Callable[[], nn.Sequential]) -> None:
    model = made()
    x, y = images() if made is small_cnn else (torch.randint(6, (4, 3)), torch.zeros(4).long())
    # flags that differ from module to module, and one parameter without a gradient
    model[1].eval()
    F.cross_entropy(model(x), y).backward()
    model[-1].weight.grad = None
    tensors, before = [*model.parameters(), *model.buffers()], traces(model)
    assert not count_flops(model, x, y, F.cross_entropy).uncounted
    assert same(traces(model), before)
    after = [*model.parameters(), *model.buffers()]
    assert all(a is b for a, b in zip(after, tensors, strict=True))


def test_a_failing_model_leaves_nothing_behind_either() -> None:
    model, batch = nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 2)), images()
    before = traces(model)
    assert count_flops(model, *batch, F.cross_entropy).uncounted
    assert same(traces(model), before)
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


# compiling takes seconds, and trainers compile too
@pytest.mark.full
def test_a_compiled_model_is_counted_as_its_eager_self() -> None:
    from torch._dynamo.testing import CompileCounter

    model, backend = small_cnn().eval(), CompileCounter()
    expected = count_flops(model, *images(), F.cross_entropy)
    compiled = torch.compile(copy.deepcopy(model), backend=backend)
    assert isinstance(compiled, nn.Module)
    for each in (compiled, nn.Sequential(compiled)):
        before = backend.frame_count
        assert count_flops(each, *images(), F.cross_entropy) == expected
        assert backend.frame_count == before
        each(images()[0])
    assert backend.frame_count > 0


# --- costs with a fixed part, and what the counter does not see


class Hypernetwork(nn.Module):
    """A linear layer whose weights a larger one makes once a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.make, self.code = nn.Linear(32, 16 * 4), nn.Parameter(torch.randn(1, 32))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.make(self.code).view(16, 4)


def test_a_cost_per_batch_is_not_multiplied_by_the_rows() -> None:
    model, x = Hypernetwork(), torch.randn(50, 16)
    flops = count_flops(model, x, x, total)
    assert flops.scoring == PassFlops(2 * 16 * 4, 2 * 32 * 64)
    with FlopCounter() as counted:
        model(x).sum().backward()
    assert flops.training(50) == counted.get_total_flops()
    assert flops.uncounted == ()


def test_scoring_is_counted_in_eval_mode_and_training_in_training_mode() -> None:
    class Auxiliary(nn.Linear):
        """Runs twice while it trains, as a network with an auxiliary head."""

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + (super().forward(x + 1) if self.training else 0)

    x = torch.randn(3, 8)
    flops = count_flops(Auxiliary(8, 4), x, x, total)
    assert (flops.scoring(1), flops.forward(1), flops.backward(1)) == (64, 128, 128)
    assert flops.uncounted == ()


def test_a_cost_that_is_not_linear_in_the_rows_is_uncounted() -> None:
    x = torch.randn(8, 16)
    flops = count_flops(nn.Linear(16, 16), x, x, lambda outputs, _: (outputs @ outputs.T).sum(1))
    assert flops.uncounted == ("a model whose cost is not linear in the rows",)
    assert min(flops.forward(1), flops.backward(1)) > 0


@torch.library.custom_op("astkit_tests::product", mutates_args=())
def product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


product.register_autograd(lambda _, gradient: (gradient, None), setup_context=lambda *_, **__: None)


def test_an_operator_without_a_formula_is_named() -> None:
    class Custom(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return product(super().forward(x), self.weight.clone())

    x, model = torch.randn(4, 8), Custom(8, 8)
    flops = count_flops(model, x, x, total)
    assert (flops.uncounted, flops.forward) == (("astkit_tests::product",), PassFlops(2 * 8 * 8))
    register = flop_counter.register_flop_formula(torch.ops.astkit_tests.product)
    register(lambda a, b, **_: 2 * a[0] * a[1] * b[1])
    flops = count_flops(model, x, x, total)
    assert (flops.uncounted, flops.forward) == ((), PassFlops(2 * 2 * 8 * 8))


# --- one count for each input shape


class Texts(nn.Module):
    """Attention over tokens, with a table of positions if it is given a size."""

    def __init__(self, positions: int = 0) -> None:
        super().__init__()
        self.embed, self.attention = nn.Embedding(50, 16), Attention()
        self.place = nn.Embedding(positions, 16) if positions else None

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        if self.place is not None:
            x = x + self.place(torch.arange(x.shape[1]))
        return self.attention(x)


def cost_of(costs: Costs, model: nn.Module, batch: Batch, count: Any) -> BatchFlops:
    known = costs.known.get((model, costs.trained, shape_of(batch)))
    return costs.add(model, batch, count) if known is None else known


def costs(model: nn.Module, lengths: list[int]) -> tuple[list[BatchFlops], int]:
    """The cost of a text of each length, and how many of them were counted."""
    counts = 0

    def count(model: nn.Module, batch: Batch) -> BatchFlops:
        nonlocal counts
        counts += 1
        return count_flops(model, batch.x, batch.y, F.cross_entropy)

    cache, y = Costs(model), torch.zeros(2, dtype=torch.long)
    batches = [Batch(None, torch.ones(2, n).long(), y) for n in lengths]
    found = [cost_of(cache, model, batch, count) for batch in batches]
    return found, counts


def test_lengths_are_counted_once_for_each_eight_in_any_order() -> None:
    (shorter, longer), _ = costs(Texts(), [24, 32])
    assert shorter.forward(1) < longer.forward(1)
    found, counts = costs(Texts(), [21, *range(17, 33), 21])
    assert counts == 2
    assert found == [shorter] * 9 + [longer] * 8 + [shorter]


def test_a_length_that_the_model_refuses_is_not_rounded_to() -> None:
    class Even(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(10, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.float().view(len(x), -1, 10)).mean(1)

    found, counts = costs(Even(), [50, 40])
    assert counts == 3  # 56 is no multiple of 10
    assert [flops.forward(1) for flops in found] == [2 * 30 * n for n in (5, 4)]
    assert found[0].uncounted == ()


def test_a_cache_knows_models_apart_and_warns_once() -> None:
    def count(m: nn.Module, b: Batch) -> BatchFlops:
        return count_flops(m, b.x, b.y, F.cross_entropy)

    cache = Costs(nn.Linear(8, 4))
    x, y = torch.randn(2, 8), torch.zeros(2, dtype=torch.long)
    assert cost_of(cache, nn.Linear(8, 2), Batch(None, x, y), count).forward(1) == 32
    assert cost_of(cache, nn.Linear(8, 3), Batch(None, x, y), count).forward(1) == 48

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            cost_of(cache, build.Spectral(8, 2), Batch(None, x, y), count)
    (only,) = said
    assert "FLOPs of _fft_r2c cannot be counted" in str(only.message)
