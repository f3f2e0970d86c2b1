"""A training state as one file: safetensors for the tensors, JSON in its header for all the rest.

Nothing in it is ever unpickled. The file's name ends in a digest of its bytes, so one that was
damaged anywhere does not fit its name. Format of the tensors and the header:
https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from astkit import files

SUFFIX = ".safetensors"
DIGITS = 16  # of the SHA-256, in hexadecimal
_KIND = "$"  # the key of a JSON object that stands for something that JSON does not have
_HEADER = "astkit"


class DamagedError(ValueError):
    """A state file that is not what was written."""


def write(folder: Path, stem: str, state: Mapping[str, Any], compress: bool = False) -> Path:
    """Write ``state`` as ``folder/<stem>_<digest>.safetensors``, atomically; returns the path.

    ``state``: nested mappings, lists and tuples of tensors, strings, numbers, booleans and None.
    Compressed, the name ends in ``.gz``.
    Raises ``ValueError`` for anything else, ``OSError`` when the disk refuses.
    """
    from safetensors.torch import save

    packer = _Packer()
    tree = json.dumps(packer.pack(dict(state), ""), allow_nan=False)
    content = save(packer.tensors, {_HEADER: tree})
    if compress:
        content = gzip.compress(content, compresslevel=1, mtime=0)
    name = f"{stem}_{_digest(content)}{SUFFIX}{'.gz' if compress else ''}"
    return files.write_atomic(folder / name, content)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The state that was written to ``path``, its tensors on the CPU.

    Raises `DamagedError` when the file is not what was written, ``FileNotFoundError`` without one.
    """
    path = Path(path)
    content = path.read_bytes()
    digest = path.name.partition(SUFFIX)[0].rpartition("_")[2]
    if _digest(content) != digest:
        raise DamagedError(f"{path} is damaged: its content does not fit the digest in its name")
    try:
        return _unpacked(gzip.decompress(content) if path.suffix == ".gz" else content)
    except Exception as error:  # not a file that `write` made
        raise DamagedError(f"{path} holds no training state ({error})") from error


def _unpacked(content: bytes) -> dict[str, Any]:
    from safetensors.torch import load

    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    tree = json.loads(header["__metadata__"][_HEADER])
    state: dict[str, Any] = _unpack(tree, load(content))
    return state


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGITS]


class _Packer:
    """Turns a state into a tree that JSON can hold, and the tensors that its leaves name."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[Hashable, str] = {}

    def pack(self, value: Any, place: str) -> Any:
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {_KIND: "float", "value": repr(value)}
        if isinstance(value, Tensor):
            return self._tensor(value.detach(), place)
        if isinstance(value, Mapping):
            if all(isinstance(key, str) for key in value) and _KIND not in value:
                return {key: self.pack(part, f"{place}/{key}") for key, part in value.items()}
            items = [[key, self.pack(part, f"{place}/{key}")] for key, part in value.items()]
            return {_KIND: "mapping", "items": items}
        if isinstance(value, list | tuple):
            parts = [self.pack(part, f"{place}/{number}") for number, part in enumerate(value)]
            return parts if isinstance(value, list) else {_KIND: "tuple", "items": parts}
        raise ValueError(
            f"{place.strip('/')} is a {type(value).__name__}, which a checkpoint cannot hold: let"
            " the state_dict give numbers, strings, tensors, or lists and mappings of them"
        )

    def _tensor(self, tensor: Tensor, place: str) -> dict[str, Any]:
        leaf: dict[str, Any] = {_KIND: "tensor"}
        if not tensor.is_contiguous():  # channels_last, say: kernels may depend on it
            leaf["strides"] = list(tensor.stride())
        # tied weights are one tensor, and stay one
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if not tensor.numel() or key not in self._names:
            self._names[key] = name = place.strip("/")
            self.tensors[name] = tensor.cpu().clone(memory_format=torch.contiguous_format)
        return {**leaf, "name": self._names[key]}


def _unpack(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(tree, list):
        return [_unpack(part, tensors) for part in tree]
    if not isinstance(tree, dict):
        return tree
    kind = tree.get(_KIND)
    if kind is None:
        return {key: _unpack(part, tensors) for key, part in tree.items()}
    if kind == "tensor":
        tensor = tensors[tree["name"]]
        if "strides" not in tree:
            return tensor
        return torch.empty_strided(tensor.shape, tree["strides"], dtype=tensor.dtype).copy_(tensor)
    if kind == "float":
        return float(tree["value"])
    if kind == "tuple":
        return tuple(_unpack(part, tensors) for part in tree["items"])
    return {key: _unpack(part, tensors) for key, part in tree["items"]}
