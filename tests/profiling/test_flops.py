"""FLOP counts against numbers that can be worked out by hand, and no traces left behind."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import flop_counter

from astkit.profiling.flops import FlopsPerSample, attention_mapping, count_flops, counter


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
    """An RNN of the given kind over [batch, steps, 4], classes from its last step."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.rnn, self.head = kind(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


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
    assert flops.forward * 10 == 40_960
    # the input needs no gradient, so the backward is the weight's alone
    assert flops.backward == flops.forward
    assert flops == FlopsPerSample(4096.0, 4096.0, ())
    assert (flops.scoring, flops.training) == (4096.0, 8192.0)


def test_a_cnn_agrees_with_the_formula() -> None:
    first, second, last = 2 * 8 * 9 * 64, 2 * 16 * 8 * 9 * 4, 2 * 64 * 10
    flops = count_flops(small_cnn(), *images(), F.cross_entropy)
    assert flops.forward == pytest.approx(first + second + last, rel=0.01)
    assert flops.backward == pytest.approx(first + 2 * second + 2 * last, rel=0.01)
    assert flops.uncounted == ()


@pytest.mark.parametrize("rows", [1, 2, 3, 32])
def test_a_sample_costs_the_same_in_any_batch(rows: int) -> None:
    model = small_cnn().eval()
    expected = count_flops(model, *images(4), F.cross_entropy)
    assert count_flops(model, *images(rows), F.cross_entropy) == expected


def test_frozen_parameters_cost_no_backward() -> None:
    model = small_cnn()
    whole = count_flops(model, *images(), F.cross_entropy)
    for layer in list(model)[:-1]:
        layer.requires_grad_(False)
    head = count_flops(model, *images(), F.cross_entropy)
    assert (head.forward, head.backward) == (whole.forward, 2 * 64 * 10)
    model.requires_grad_(False)
    assert count_flops(model, *images(), F.cross_entropy).backward == 0


def test_attention_is_counted_as_the_math_backend_counts_it() -> None:
    model, x, y = Attention(), torch.randn(4, 9, 16), torch.zeros(4, dtype=torch.long)
    fused = count_flops(model, x, y, F.cross_entropy)
    with sdpa_kernel(SDPBackend.MATH):
        plain = count_flops(model, x, y, F.cross_entropy)
    product = 2 * 9 * 9 * 16
    projections = 2 * 9 * 16 * 48 + 2 * 16 * 4
    assert fused.forward == plain.forward == projections + 2 * product
    # the fused kernel keeps no scores, so its backward computes them again
    assert fused.backward == plain.backward + product
    assert fused.uncounted == plain.uncounted == ()


def test_attention_is_counted_where_torch_has_no_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = Attention(), torch.randn(4, 9, 16), torch.zeros(4, dtype=torch.long)
    expected = count_flops(model, x, y, F.cross_entropy)
    for name in ("", "_backward"):
        op = getattr(torch.ops.aten, f"_scaled_dot_product_flash_attention_for_cpu{name}")
        monkeypatch.delitem(flop_counter.flop_registry, op, raising=False)
    assert len(attention_mapping()) == 2
    assert count_flops(model, x, y, F.cross_entropy) == expected


@pytest.mark.parametrize("training", [True, False])
def test_the_fused_transformer_layer_is_counted(training: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).train(training)
    tokens = torch.randn(2, 5, 8)
    fastpath = torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad(), counter() as counted:
        layer(tokens)
    per_row = 2 * 5 * 8 * (24 + 8 + 16 + 16) + 2 * (2 * 5 * 5 * 8)
    assert counted.get_total_flops() == 2 * per_row
    assert counted.uncounted() == ()
    assert torch.backends.mha.get_fastpath_enabled() == fastpath


def test_an_lstm_is_listed_and_a_gru_is_counted() -> None:
    x, y = torch.randn(4, 7, 4), torch.zeros(4, dtype=torch.long)
    lstm = count_flops(Recurrent(nn.LSTM), x, y, F.cross_entropy)
    assert any("rnn" in name or "lstm" in name for name in lstm.uncounted)
    assert lstm.forward == 2 * 5 * 3
    gru = count_flops(Recurrent(nn.GRU), x, y, F.cross_entropy)
    assert gru.uncounted == ()
    assert gru.forward == 2 * 7 * 15 * (4 + 5) + 2 * 5 * 3
    # weights of input and state, and the gradient of the state
    assert gru.backward > 1.9 * 2 * 7 * 15 * 5 + 2 * 7 * 15 * 4


def test_vector_products_are_listed() -> None:
    matrix, vector = torch.randn(3, 4), torch.randn(4)
    with counter() as counted:
        matrix @ vector
        vector @ vector
        F.bilinear(matrix, matrix, torch.randn(2, 4, 4))
    assert counted.get_total_flops() == 0
    assert counted.uncounted() == ("_trilinear", "dot", "mv")
    with counted:
        matrix @ matrix.T
    assert (counted.get_total_flops(), counted.uncounted()) == (2 * 3 * 4 * 3, ())


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_nothing_is_left_behind() -> None:
    model, (x, y) = small_cnn(), images()
    # flags that differ from module to module, and one parameter without a gradient
    model[4].eval()
    F.cross_entropy(model(x), y).backward()
    model[5].weight.grad = None
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    before, flags = snapshot(model), [module.training for module in model.modules()]
    tensors, random = [*model.parameters(), *model.buffers()], torch.get_rng_state()
    count_flops(model, x, y, F.cross_entropy)
    assert same(snapshot(model), before)
    assert [module.training for module in model.modules()] == flags
    assert all(
        a is b for a, b in zip([*model.parameters(), *model.buffers()], tensors, strict=True)
    )
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        if parameter.grad is None or grad is None:
            assert parameter.grad is grad
        else:
            assert torch.equal(parameter.grad, grad)
    assert torch.equal(torch.get_rng_state(), random)


def test_the_generators_are_put_back_after_dropout() -> None:
    model, random = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2)), torch.get_rng_state()
    model(torch.ones(2, 4))
    assert not torch.equal(torch.get_rng_state(), random)
    random = torch.get_rng_state()
    count_flops(model, torch.ones(2, 4), torch.zeros(2, dtype=torch.long), F.cross_entropy)
    assert torch.equal(torch.get_rng_state(), random)


def test_an_embedding_that_renormalises_itself_is_put_back() -> None:
    model = nn.Sequential(nn.Embedding(6, 4, max_norm=0.1), nn.Flatten(), nn.Linear(12, 3))
    before = snapshot(model)
    x, y = torch.randint(6, (4, 3)), torch.zeros(4, dtype=torch.long)
    assert count_flops(model, x, y, F.cross_entropy).forward == 2 * 12 * 3
    assert same(snapshot(model), before)


def test_a_failing_model_leaves_nothing_behind_either() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 2))
    x, y = torch.randn(2, 4), torch.zeros(2, dtype=torch.long)
    random = torch.get_rng_state()
    with pytest.raises(RuntimeError):
        count_flops(model, x, y, F.cross_entropy)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_the_callers_grad_mode_does_not_matter(context: Callable[[], object]) -> None:
    model = small_cnn().eval()
    expected = count_flops(model, *images(), F.cross_entropy)
    with context():  # type: ignore[attr-defined]
        assert count_flops(model, *images(), F.cross_entropy) == expected


# the hook is the counter's own module tracker
@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_a_compiled_model_is_counted_as_its_eager_self() -> None:
    model = small_cnn().eval()
    expected = count_flops(model, *images(), F.cross_entropy)
    compiled_calls: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        def run(*args: object) -> object:
            compiled_calls.append(1)
            return graph(*args)

        return run

    compiled = torch.compile(copy.deepcopy(model), backend=backend)
    assert isinstance(compiled, nn.Module)
    assert count_flops(compiled, *images(), F.cross_entropy) == expected
    assert compiled_calls == []
    compiled(images()[0])
    assert compiled_calls == [1]
    inside = nn.Sequential(compiled)
    assert count_flops(inside, *images(), F.cross_entropy) == expected
    inside(images()[0])
    assert compiled_calls == [1, 1]


def test_the_count_times_the_samples_is_what_a_counted_epoch_costs() -> None:
    model = small_cnn()
    flops = count_flops(model, *images(), F.cross_entropy)
    with counter() as counted:
        for rows in (8, 8, 5):
            x, y = images(rows)
            F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            model(images(6)[0])
    assert counted.get_total_flops() == 21 * flops.training + 6 * flops.scoring


def test_masking_the_loss_saves_nothing_and_indexing_rows_saves_their_share() -> None:
    model, (x, y) = small_cnn(), images(20)
    chosen = torch.arange(6)
    mask = torch.zeros(20).index_fill(0, chosen, 1.0)

    def cost(step: Callable[[], Tensor]) -> int:
        with counter() as counted:
            step().backward()
        return counted.get_total_flops()

    dense = cost(lambda: F.cross_entropy(model(x), y))
    masked = cost(lambda: (F.cross_entropy(model(x), y, reduction="none") * mask).sum())
    indexed = cost(lambda: F.cross_entropy(model(x[chosen]), y[chosen]))
    assert masked == dense
    assert indexed == dense * 6 // 20


def test_scoring_everything_costs_the_forward_of_everything() -> None:
    model, (x, y) = small_cnn(), images(20)
    flops = count_flops(model, x, y, F.cross_entropy)
    with counter() as counted:
        with torch.no_grad():
            model(x)
        F.cross_entropy(model(x[:6]), y[:6]).backward()
    share = counted.get_total_flops() / (20 * flops.training)
    assert share == pytest.approx(0.3 + flops.scoring / flops.training)


@pytest.mark.parametrize(("rows", "labels"), [(0, 0), (4, 3)])
def test_rows_that_do_not_match_are_refused(rows: int, labels: int) -> None:
    x, y = torch.randn(rows, 4), torch.zeros(labels, dtype=torch.long)
    with pytest.raises(ValueError, match="as many rows in x as in y"):
        count_flops(nn.Linear(4, 2), x, y, F.cross_entropy)
