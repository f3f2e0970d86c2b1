"""One graph for all sizes, the model's own parameters, and eager for good where it fails.

What dynamo traces is tested on the quick ``aot_eager`` back end; inductor takes a minute.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from astkit.profiling.flops import count_flops
from astkit.trainers.compiling import Compiled, compiled

Failing = Callable[..., Any]


@pytest.fixture(autouse=True)
def _no_graphs_left() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Makes ``torch.compile`` use another back end than inductor."""
    real = torch.compile

    def use(name: Any) -> None:
        monkeypatch.setattr(torch, "compile", lambda model: real(model, backend=name))

    return use


def gradients(model: nn.Module, outputs: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(outputs.square().sum(), list(model.parameters())))


def images(rows: int) -> Tensor:
    return torch.randn(rows, 1, 8, 8, dtype=torch.float64)


def check_all_sizes(model: nn.Module, sizes: list[int]) -> Compiled:
    """Outputs, gradients and running statistics as the eager model's; warnings are errors."""
    eager = copy.deepcopy(model)
    fast = compiled(model)
    for rows in sizes:
        x = images(rows)
        outputs, expected = fast(x), eager(x)
        assert torch.allclose(outputs, expected, rtol=0, atol=1e-12)
        for found, wanted in zip(
            gradients(model, outputs), gradients(eager, expected), strict=True
        ):
            assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-11)
    for name, value in eager.state_dict().items():
        assert torch.allclose(model.state_dict()[name], value, rtol=0, atol=1e-12)
    assert fast.reason is None
    return fast


@pytest.mark.filterwarnings("error")
def test_one_graph_serves_all_sizes(
    cnn: Callable[..., nn.Module], backend: Callable[[Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    backend("aot_eager")
    fast = check_all_sizes(cnn(batch_norm=True), [37, 1, *range(2, 65, 9)])
    assert fast.graphs == 1
    assert not [record for record in caplog.records if "recompile" in record.getMessage()]


@pytest.mark.full
@pytest.mark.filterwarnings("error")
def test_inductor_agrees_on_all_sizes(cnn: Callable[..., nn.Module]) -> None:
    assert check_all_sizes(cnn(batch_norm=True), [37, 1, *range(2, 65)]).graphs <= 2


def test_none_or_one_row_goes_to_the_eager_model(backend: Callable[[Any], None]) -> None:
    backend(lambda graph, inputs: pytest.fail("compiled"))
    fast = compiled(nn.Linear(3, 2))
    assert fast(torch.ones(0, 3)).shape == (0, 2)
    assert fast(torch.ones(1, 3)).shape == (1, 2)
    assert (fast.graphs, fast.reason) == (0, None)


def test_the_model_stays_as_it_is(backend: Callable[[Any], None]) -> None:
    backend("aot_eager")
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    modules, keys = list(model.modules()), list(model.state_dict())
    parameters = list(model.parameters())
    fast = compiled(model)
    before = torch.get_rng_state()
    fast(torch.ones(5, 3)).sum().backward()
    assert fast.model is model
    assert list(model.modules()) == modules
    assert list(model.state_dict()) == keys
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert all(parameter.grad is not None for parameter in parameters)
    torch.set_rng_state(before)
    assert model[0](torch.ones(2, 3)).shape == (2, 4)


def test_the_trial_leaves_no_trace(backend: Callable[[Any], None]) -> None:
    """The first call gives what every other gives: statistics, gradients and random numbers."""
    backend("aot_eager")
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    eager, x = copy.deepcopy(model), torch.randn(6, 3)
    with torch.random.fork_rng():
        expected = eager(x)
        after = torch.rand(1)
    with torch.random.fork_rng():
        outputs = compiled(model)(x)
        assert torch.equal(torch.rand(1), after)
    assert torch.equal(outputs == 0, expected == 0)
    assert int(model[1].num_batches_tracked) == 1
    assert torch.allclose(model[1].running_mean, eager[1].running_mean)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_tuples_and_mappings_have_their_rows_marked(backend: Callable[[Any], None]) -> None:
    backend("aot_eager")

    class Sum(nn.Linear):
        def forward(self, x: Any) -> dict[str, Tensor]:
            return {"y": super().forward(x["a"] + x["b"][0])}

    fast = compiled(Sum(3, 2))
    for rows in (4, 5, 6):
        x = torch.randn(rows, 3)
        assert fast({"a": x, "b": (x.clone(), None)})["y"].shape == (rows, 2)
    assert fast.graphs == 1


def test_flops_are_counted_on_the_eager_model(backend: Callable[[Any], None]) -> None:
    backend("aot_eager")
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    x, y = torch.randn(5, 3), torch.zeros(5, dtype=torch.long)
    expected = count_flops(model, x, y, nn.functional.cross_entropy)
    fast = compiled(model)
    fast(x)
    assert count_flops(fast.model, x, y, nn.functional.cross_entropy) == expected
    fast(x)
    assert fast.graphs == 1


def broken(stage: str) -> Any:
    """A back end that fails when it compiles the forward, or only when the backward runs."""
    from torch._dynamo.backends.common import aot_autograd

    def fail(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no luck\nwith a second line")

    def keep(graph: Any, inputs: Any) -> Any:
        return graph

    return aot_autograd(fw_compiler=fail if stage == "forward" else keep, bw_compiler=fail)


@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_where_it_fails_it_is_eager_for_good_with_one_warning(
    stage: str, backend: Callable[[Any], None]
) -> None:
    backend(broken(stage))
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    eager, x = copy.deepcopy(model), torch.randn(6, 3)
    fast = compiled(model, "cpu")
    with pytest.warns(UserWarning, match="^torch.compile failed on cpu") as caught:
        outputs = fast(x)
    assert len(caught) == 1
    sentence = str(caught[0].message)
    assert sentence == fast.reason
    assert "no luck), so training continues uncompiled" in sentence
    assert "TORCH_LOGS=dynamo" in sentence
    assert "\n" not in sentence
    outputs.sum().backward()
    assert torch.equal(outputs, eager(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(fast(x), eager(x))
    assert torch.equal(model[1].running_mean, eager[1].running_mean)
    assert fast.graphs == 0


def test_a_mistake_in_the_inputs_is_no_reason_to_give_up(backend: Callable[[Any], None]) -> None:
    backend("aot_eager")
    fast = compiled(nn.Linear(3, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            fast(torch.ones(4, 5))
        assert fast(torch.ones(4, 3)).shape == (4, 2)
    assert fast.reason is None


def test_running_out_of_memory_is_not_taken_for_a_failure(backend: Callable[[Any], None]) -> None:
    def full(*inputs: Any) -> Any:
        raise torch.OutOfMemoryError("full")

    backend(lambda graph, inputs: full)
    fast = compiled(nn.Linear(3, 2))
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        fast(torch.ones(4, 3))
    assert fast.reason is None


def test_a_python_that_torch_cannot_compile_for_is_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: nn.Module) -> Any:
        raise RuntimeError("torch.compile is not supported on Python 9")

    monkeypatch.setattr(torch, "compile", refuse)
    with pytest.warns(UserWarning, match="not supported on Python 9"):
        fast = compiled(nn.Linear(3, 2))
    assert fast(torch.ones(4, 3)).shape == (4, 2)


NO_COMPILER = """
import torch
from torch import nn
from astkit.trainers.compiling import compiled

for layers in ([nn.Linear(3, 2)], [nn.Linear(3, 2), nn.ReLU()]):
    fast = compiled(nn.Sequential(*layers))
    for rows in (4, 5):
        fast(torch.ones(rows, 3)).square().sum().backward()
    print(fast.reason)
"""


@pytest.mark.full
def test_without_a_compiler_one_sentence_says_so(tmp_path: Any) -> None:
    """The first model needs a compiler in its backward only, where the caller could catch none."""
    environment = os.environ | {"CXX": "no-such-compiler", "PATH": str(tmp_path)}
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", NO_COMPILER],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("No working C++ compiler" in line for line in lines)
    assert all("install a C++ compiler such as g++" in line for line in lines)
    assert done.stderr.count("UserWarning") == 2
    assert "Traceback" not in done.stderr
