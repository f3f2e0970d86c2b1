"""A folder refuses a call whose code reads another value, and goes on after an interrupt."""

import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from astkit import InfoBatch
from astkit.comparison.reads import FILE, reads
from tests.comparison.small_tasks import interrupt, run, timeless

HEAD = """
import argparse, collections, dataclasses, decimal, enum, functools, logging, operator, os, random
import re, types
import numpy as np, pandas as pd, torch
from torch import nn
from torch.nn import functional as F
from astkit import Gate, Policy, Selection
"""
LOSS = "F.cross_entropy(o, y, reduction='none')"
CLASS = "class C:\n    def __init__(self, **k): self.__dict__['_k'] = k\n    def "
PLAN = "    def plan(self, run): return Selection(run.rows[: "
# cells of a notebook that define `it`, in which n has another value
READ = {
    "global": f"def it(o, y): return n * {LOSS}",
    "lambda": f"it = lambda o, y: n * {LOSS}",
    "constant of a lambda": f"it = lambda o, y: LITERAL * {LOSS}",
    "in a comprehension": "def it(o, y): return [n * each for each in o]",
    "default": "def it(o, y, *, k=n): return k * o",
    "cell": "def make(k):\n    def it(o, y): return k * o\n    return it\nit = make(n)",
    "partial": "def f(k, o, y): return k * o\nit = functools.partial(f, n)",
    "called function": "def g(o): return n * o\ndef it(o, y): return g(o)",
    "function in a mapping": "D = {'g': lambda o: n * o}\nit = lambda o, y: D['g'](o)",
    "another module": "import own\nown.n = n\ndef it(o, y): return own.f(o)",
    "decorated": "@torch.no_grad()\ndef it(o, y): return n * o",
    "method": "class C:\n    def f(self, o, y): return self.k\nc = C()\nc.k = n\nit = c.f",
    "class of settings": "class C:\n    k = n\ndef it(o, y): return C.k * o",
    "slots": "@dataclasses.dataclass(slots=True)\nclass C:\n    k: int\nc = C(n)\nit = lambda: c.k",
    "namespace": "c = argparse.Namespace(k=n)\ndef it(o, y): return c.k * o",
    "enum": "class E(enum.Enum):\n    A = n\ndef it(o, y): return E.A.value * o",
    "many": "k = [*range(500), n]\ndef it(o, y): return k[o]",
    "set": "k = {'a', n}\ndef it(o, y): return o in k",
    "mapping with attributes": "class D(dict): __getattr__ = dict.__getitem__\nd = D(k=n)\n"
    "def it(o, y): return d",
    "dict with attributes": "class D(dict): pass\nd = D()\nd.k = n\ndef it(o, y): return d.k",
    "dict with defaults": "class D(dict):\n    def __missing__(self, k): return n\n"
    "d = D()\ndef it(o, y): return d['k']",
    "UserDict": "d = collections.UserDict(k=n)\ndef it(o, y): return d['k']",
    "read-only mapping": "d = types.MappingProxyType({'k': n})\ndef it(o, y): return d['k']",
    "items of an object": f"{CLASS}__getitem__(self, k): return self._k[k]\nc = C(k=n)\n"
    "def it(o, y): return c['k']",
    "attributes on request": f"{CLASS}__getattr__(self, k): return self._k[k]\nc = C(k=n)\n"
    "def it(o, y): return c.k",
    "own mapping": f"{CLASS}__getitem__(self, k): return self._k[k]\n"
    "    def __len__(self): return len(self._k)\n    def __iter__(self): return iter(self._k)\n"
    "c = C(k=n)\ndef it(o, y): return {k: c[k] for k in c}",
    "named after its holder": "c = types.SimpleNamespace(k=n)\n"
    "D = {'c': c, 'g': lambda c, o: c.k * o}\ndef it(o, y): return D['g'](D['c'], o)",
    "globals()": "def it(o, y): return globals()['n'] * o",
    "globals() by a key": "KEY = 'n'\ndef it(o, y): return globals()[KEY] * o",
    "globals() in turn": "def it(o, y): return [globals()[k] for k in ('m', 'n')]",
    "eval": "def it(o, y): return eval('n * 2')",
    "vars of a module": "import own\nown.n = n\ndef it(o, y): return vars(own)['n'] * o",
    "attribute by a key": "import own\nown.n = n\ndef it(o, y, k='n'): return getattr(own, k)",
    "all attributes": "def f(o, **k): return [*k.values()]\nc = argparse.Namespace(m=n)\n"
    "def it(o, y): return f(o, **vars(c))",
    "attribute of a made name": "class C: k1 = n\ndef it(o, y): return getattr(C, f'k{len(o)}')",
    "import in a function": "def it(o, y):\n    import later\n    return later.n * o",
    "from in a function": "def it(o, y):\n    from later import n as k\n    return k * o",
    "environment": "os.environ['K'] = str(n)\ndef it(o, y): return int(os.environ['K']) * o",
    "getenv": "os.environ['K'] = str(n)\ndef it(o, y): return int(os.getenv('K')) * o",
    "function with attributes": "def it(o, y): return it.k * o\nit.k = n",
    "metaclass": "class M(type):\n    def __getitem__(self, k): return self.d[k]\n"
    "class C(metaclass=M): d = {'k': n}\ndef it(o, y): return C['k'] * o",
    "dispatched": "@functools.singledispatch\ndef it(o, y): return o\n"
    "@it.register\ndef f(o: int, y): return n * o",
    "factory": "d = collections.defaultdict(lambda: n)\ndef it(o, y): return d[len(o)]",
    "own tensor": "class T(torch.Tensor): pass\nk = T([1, n])\ndef it(o, y): return k * o",
    "decimal": "k = decimal.Decimal(n)\ndef it(o, y): return float(k) * o",
    "pattern": "k = re.compile(str(n))\ndef it(o, y): return k.sub('', o)",
    "itemgetter": "k = operator.itemgetter(n)\ndef it(o, y): return k(o)",
    "series": "k = pd.Series([1.0, n])\ndef it(o, y): return k[0] * o",
    "array of objects": "k = np.array(['a', n], object)\ndef it(o, y): return k[0] * o",
    "tensor": "k = torch.tensor([1, n]).bfloat16()\ndef it(o, y): return k * o",
    "words": "k = np.array(['a', str(n)])\ndef it(o, y): return k[o]",
    "large": "k = np.zeros(2**24)\nk[0] = n\ndef it(o, y): return k[o]",
    "library": "k = torch.sin if n > 2 else torch.cos\ndef it(o, y): return k(o)",
    "policy": f"class P(Policy):\n{PLAN}n])\nit = P()",
    "attribute": f"def f(p): return p.k\nclass P(Policy):\n{PLAN}f(self)])\nit = P()\nit.k = n",
    "class attribute": f"class P(Policy):\n    k = n\n{PLAN}self.k])\nit = P()",
    "property": "class P(Policy):\n    @property\n    def k(self): return n\nit = P()",
    "score": "def score(*losses): return n\nit = Gate(0.3, score)",
    "forward": "class M(nn.Linear):\n    def forward(self, x): return n * x\nit = M(2, 2)",
    "part of a model": "it = nn.Sequential(nn.Linear(2, 2), nn.Dropout(1 / n))",
    "module": "f = nn.CrossEntropyLoss(label_smoothing=1 / n)\ndef it(o, y): return f(o, y)",
}  # fmt: skip
OTHER = {
    "unused": "def it(o, y): return o",
    "unused under another name": "globals()[f'v{n}'] = 1\ndef it(o, y): return o",
    "attribute of that name": "def it(o, y): return o.n()",
    "local of that name": "def it(o, y):\n    n = 1\n    return n * o",
    "comment": "def it(o, y):\n    # LITERAL\n    return o",
    "other setting": "c = types.SimpleNamespace(k=1, out=n)\ndef it(o, y): return c.k",
    "attribute without use": f"class P(Policy):\n{PLAN}3])\nit = P()\nit.note = n",
    "state": "class P(Policy):\n    def plan(self, run): self.r\nit = P()\nit.r = random.Random(n)",
    "logger": "log = logging.getLogger(str(n))\ndef it(o, y): log.info(o)",
    "model": "t = nn.Linear(2, 2)\ndef it(o, y): return t(o)",
    "data": "d = torch.utils.data.TensorDataset(torch.ones(n))\ndef it(o, y): return d[0]",
    "wide middle": "k = torch.zeros(2**25)\nk[7] = n\ndef it(o, y): return k[o]",
}  # fmt: skip


def read(cell: str, n: int, folder: Path, patch: pytest.MonkeyPatch) -> Any:
    """What ``it`` reads, as this cell of a notebook defines it in a new process."""
    (folder / "later.py").write_text(f"n = {n}")
    patch.delitem(sys.modules, "later", raising=False)
    book, own = ModuleType("book"), ModuleType("own")
    exec("def f(o): return n * o", own.__dict__)
    for module in (book, own):
        patch.setitem(sys.modules, module.__name__, module)
    exec(f"{HEAD}n = {n}\n{cell.replace('LITERAL', str(n))}", book.__dict__)
    return reads(book.__dict__["it"])


@pytest.mark.parametrize("name", READ | OTHER)
def test_values_that_code_reads(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("K", "")
    cell = (READ | OTHER)[name]
    before, again, other = (read(cell, n, tmp_path, monkeypatch) for n in (2, 2, 20))
    assert again == before
    assert (other != before) == (name in READ)


SEEN: list[int] = []
"""Grows in runs: a state of the policy, not a setting."""


class Keeps(InfoBatch):
    """Keeps a list, in itself and beside, and a generator."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []
        self.generator = torch.Generator().manual_seed(int(time.time_ns() % 1000))

    def observe(self, visit: Any) -> None:
        super().observe(visit)
        self.seen.append(len(visit.index))
        SEEN.append(int(torch.randint(9, (), generator=self.generator)))


def test_an_interrupted_policy_with_a_list_and_a_generator_goes_on(tmp_path, monkeypatch, capsys):
    def options(scale: float = 1.0) -> dict[str, Any]:
        def criterion(outputs: Any, targets: Any) -> Any:
            return scale * nn.functional.cross_entropy(outputs, targets, reduction="none")

        return {"criterion": criterion, "policies": [Keeps()], "seeds": [0], "out": tmp_path}

    interrupt(monkeypatch, 5, **options())
    assert capsys.readouterr().out.count("only the type of generator of Keeps (Generator)") == 1
    interrupt(monkeypatch, 10, **options())
    report = run(**options())
    assert "the type of" not in capsys.readouterr().out
    assert timeless(report.entries) == timeless(run(**options() | {"out": None}).entries)
    assert SEEN
    with pytest.raises(ValueError, match=r"criterion in .*scale was 1.0 and is 1.0001\): restore"):
        run(**options(1.0001))
    (tmp_path / FILE).unlink()  # as in a folder of an earlier version
    assert run(**options(1.0001)).entries == report.entries
