"""A training state as one file: it comes back as it was, or not at all."""

from __future__ import annotations

import copy
import gzip
import json
import os
import pickle
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from astkit.trainers import state_file
from tests.trainers.states import same

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8]
plain = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=8)
tensors = st.builds(
    lambda shape, dtype, seed: torch.randint(
        0, 2, shape, generator=torch.Generator().manual_seed(seed)
    ).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 99),
)
keys = st.text(max_size=4) | st.integers(0, 9)
states = st.recursive(
    plain | tensors,
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.lists(parts, max_size=3).map(tuple)
        | st.dictionaries(keys, parts, max_size=3)
    ),
    max_leaves=12,
)


def write(folder: Path, state: dict, compress: bool = False) -> Path:
    return state_file.write(folder, "some", state_file.Packed(state), compress)


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(st.text(max_size=6), states, max_size=4), st.booleans())
def test_a_state_comes_back_as_it_was(tmp_path_factory, state: dict, compress: bool) -> None:
    path = write(tmp_path_factory.mktemp("state"), state, compress)
    assert same(state_file.read(path), state)


def test_tied_weights_are_kept_once_and_memory_order_is_kept(tmp_path: Path) -> None:
    weight = torch.randn(64, 64)
    images = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    path = write(tmp_path, {"a": weight, "b": weight, "images": images})
    state = state_file.read(path)
    assert state["a"].data_ptr() == state["b"].data_ptr()
    assert path.stat().st_size < 1.3 * weight.nbytes + images.nbytes
    assert state["images"].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(state["images"], images)


def test_a_packed_state_is_a_copy() -> None:
    base = torch.arange(12.0).view(3, 4)
    weight = nn.Parameter(base.clone())
    state = {"views": [base, base.t(), base[1:], base[:, ::2]], "weight": (weight, {"n": [1]})}
    packed, before = state_file.Packed(state), copy.deepcopy(state)
    base.fill_(-1)
    weight.data.fill_(-1)
    state["weight"][1]["n"].append(2)
    found = state_file._unpack(packed.tree, packed.tensors)
    assert found["weight"][1] == {"n": [1]}
    assert torch.equal(found["weight"][0], before["weight"][0])
    assert not found["weight"][0].requires_grad
    assert all(map(torch.equal, found["views"], before["views"]))
    assert found["views"][1].stride() == (1, 4)


def test_the_same_state_is_the_same_file(tmp_path: Path) -> None:
    state = {"weight": torch.ones(3), "step": 1}
    paths = [write(tmp_path / str(i), state, compress=True) for i in range(2)]
    assert paths[0].name == paths[1].name
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_what_a_file_cannot_hold_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="gate/score is a set, which a checkpoint cannot hold"):
        write(tmp_path, {"gate": {"score": {1}}})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("compress", [False, True])
def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path, compress: bool) -> None:
    path = write(tmp_path, {"w": torch.randn(40), "step": 7}, compress)
    content, chance = path.read_bytes(), random.Random(0)
    for place in range(chance.randrange(7), len(content), 7):
        spoilt = bytearray(content)
        spoilt[place] ^= 1 << chance.randrange(8)
        path.write_bytes(spoilt)
        with pytest.raises(state_file.DamagedError, match=path.name):
            state_file.read(path)
    for length in (0, 1, 8, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(state_file.DamagedError):
            state_file.read(path)


class Malice:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("torch_zip", [False, True])
def test_a_pickle_is_not_executed_even_under_a_fitting_name(
    tmp_path: Path, torch_zip: bool
) -> None:
    target = tmp_path / "harm"
    path = tmp_path / "content"
    if torch_zip:
        torch.save({"model": Malice(target)}, path)
    else:
        path.write_bytes(pickle.dumps(Malice(target)))
    fitting = path.rename(tmp_path / f"some_{state_file._digest(path.read_bytes())}.safetensors")
    with pytest.raises(state_file.DamagedError, match="holds no training state"):
        state_file.read(fitting)
    assert not target.exists()
    pickle.loads(pickle.dumps(Malice(target)))  # it would have done harm
    assert target.exists()


def named(folder: Path, content: bytes, ending: str = "") -> Path:
    """A file whose name fits its content."""
    path = folder / f"some_{state_file._digest(content)}.safetensors{ending}"
    path.write_bytes(content)
    return path


def test_a_compressed_file_that_expands_without_bound_is_refused_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "ALWAYS", 1 << 20)
    bomb = named(tmp_path, gzip.compress(bytes(1 << 26), 9, mtime=0), ".gz")
    tracemalloc.start()
    with pytest.raises(state_file.DamagedError, match=rf"{bomb.name} .* expand to more than 1,"):
        state_file.read(bomb)
    assert tracemalloc.get_traced_memory()[1] < 1 << 23
    tracemalloc.stop()
    state = {"zeros": torch.zeros(1 << 20)}  # an honest state of that kind is not compressed
    path = write(tmp_path, state, compress=True)
    assert path.suffix == ".safetensors"
    assert torch.equal(state_file.read(path)["zeros"], state["zeros"])


def test_other_content_in_valid_json_is_refused_with_the_files_name(tmp_path: Path) -> None:
    trees = (
        "[1, 2]",
        "null",
        '{"$": "tensor", "name": "absent"}',
        '{"$": "tensor"}',
        '{"$": "tuple", "items": 3}',
        '{"$": "mapping", "items": [1]}',
        '{"a": {"$": "tensor", "name": "w", "strides": [1099511627776, 1]}}',
        '{"a": {"$": "float", "value": "x"}}',
        "[" * 100_000,
    )
    for tree in trees:
        header = json.dumps(
            {
                "__metadata__": {"astkit": tree},
                "w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
            }
        ).encode()
        path = named(tmp_path, struct.pack("<Q", len(header)) + header + bytes(16))
        with pytest.raises(state_file.DamagedError, match=rf"{path.name} holds no training state"):
            state_file.read(path)
    endless = tmp_path / "000001_step00000001_0123456789abcdef.safetensors"
    endless.symlink_to("/dev/zero")
    with pytest.raises(state_file.DamagedError, match=f"{endless.name} is not a regular file"):
        state_file.read(endless)
