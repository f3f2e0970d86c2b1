"""One graph for all sizes, the model's own parameters, and the eager model where it fails.

What dynamo traces is tested on the quick ``aot_eager`` back end; inductor takes a minute.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import warnings

import pytest
import torch
from astkit.trainers.compiling import Compiled
from torch import nn


@pytest.fixture(autouse=True)
def _no_graphs_left():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def backend(monkeypatch):
    """Makes ``torch.compile`` use another back end than inductor."""
    real = torch.compile

    def use(name):
        monkeypatch.setattr(torch, "compile", lambda model: real(model, backend=name))

    return use


def gradients(model, outputs):
    return torch.autograd.grad(outputs.square().sum(), list(model.parameters()))


def check_all_sizes(model, sizes):
    """Outputs, gradients and running statistics as the eager model's; the number of graphs."""
    from torch._dynamo.utils import counters

    eager, before = copy.deepcopy(model), counters["stats"]["unique_graphs"]
    fast = Compiled(model)
    for rows in sizes:
        x = torch.randn(rows, 1, 8, 8, dtype=torch.float64)
        outputs, expected = fast(x), eager(x)
        assert torch.allclose(outputs, expected, rtol=0, atol=1e-12)
        pairs = zip(gradients(model, outputs), gradients(eager, expected), strict=True)
        for found, wanted in pairs:
            assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-11)
    for name, value in eager.state_dict().items():
        assert torch.allclose(model.state_dict()[name], value, rtol=0, atol=1e-12)
    return counters["stats"]["unique_graphs"] - before


@pytest.mark.filterwarnings("error")
def test_one_graph_serves_all_sizes(cnn, backend):
    backend("aot_eager")
    assert check_all_sizes(cnn(batch_norm=True), [37, 1, 2, 29, 64]) == 1


@pytest.mark.full
@pytest.mark.filterwarnings("error")
def test_inductor_agrees_on_all_sizes(cnn):
    assert check_all_sizes(cnn(batch_norm=True), [37, 1, *range(2, 65)]) <= 2


def test_none_or_one_row_goes_to_the_eager_model(backend):
    backend(lambda graph, inputs: pytest.fail("compiled"))
    fast = Compiled(nn.Linear(3, 2))
    assert fast(torch.ones(0, 3)).shape == (0, 2)
    assert fast(torch.ones(1, 3)).shape == (1, 2)


def test_the_model_stays_as_it_is(backend):
    backend("aot_eager")
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    modules, keys = list(model.modules()), list(model.state_dict())
    Compiled(model)(torch.ones(5, 3)).sum().backward()
    assert list(model.modules()) == modules
    assert list(model.state_dict()) == keys
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_tuples_and_mappings_have_their_rows_marked(backend):
    from torch._dynamo.utils import counters

    backend("aot_eager")

    class Sum(nn.Linear):
        def forward(self, x):
            return {"y": super().forward(x["a"] + x["b"][0])}

    fast, before = Compiled(Sum(3, 2)), counters["stats"]["unique_graphs"]
    for rows in (4, 5, 6):
        x = torch.randn(rows, 3)
        assert fast({"a": x, "b": (x.clone(), None)})["y"].shape == (rows, 2)
    assert counters["stats"]["unique_graphs"] - before == 1


def test_where_it_fails_it_is_eager_for_good_with_one_warning(backend):
    def fail(graph, inputs):
        raise RuntimeError("no luck\nwith a second line")

    backend(fail)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    eager, x = copy.deepcopy(model), torch.randn(6, 3)
    fast = Compiled(model)
    with pytest.warns(UserWarning, match=r"^torch.compile failed .*no luck\), so") as caught:
        outputs = fast(x)
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(outputs, eager(x))
        assert torch.equal(fast(x), eager(x))
    assert torch.equal(model[1].running_mean, eager[1].running_mean)


def test_a_mistake_in_the_inputs_is_no_reason_to_give_up(backend):
    backend("aot_eager")
    fast = Compiled(nn.Linear(3, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            fast(torch.ones(4, 5))
        assert fast(torch.ones(4, 3)).shape == (4, 2)


def test_a_python_that_torch_cannot_compile_for_is_eager(monkeypatch):
    def refuse(model):
        raise RuntimeError("torch.compile is not supported on Python 9")

    monkeypatch.setattr(torch, "compile", refuse)
    with pytest.warns(UserWarning, match="not supported on Python 9"):
        fast = Compiled(nn.Linear(3, 2))
    assert fast(torch.ones(4, 3)).shape == (4, 2)


NO_COMPILER = """
import torch
from torch import nn
from astkit.trainers.compiling import Compiled

fast = Compiled(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))
for rows in (4, 5):
    fast(torch.ones(rows, 3)).square().sum().backward()
"""


@pytest.mark.full
def test_without_a_compiler_one_sentence_says_so(tmp_path):
    environment = os.environ | {"CXX": "no-such-compiler", "PATH": str(tmp_path)}
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", NO_COMPILER]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.count("UserWarning") == 1
    assert "No working C++ compiler" in done.stderr
    assert "install a C++ compiler such as g++" in done.stderr
