"""Training state in one safetensors file; data other than tensors are JSON in its header.

Does not use pickle. The file name ends in a digest of the content, so that damage is detected.
Format: https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import os
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from astkit import files

SUFFIX = ".safetensors"
DIGITS = 16  # hexadecimal digits of the SHA-256
EXPANSION, ALWAYS = 20, 64 << 20
"""A compressed file may expand to 20 times its size, or 64 MiB if that is larger."""
_KIND = "$"  # key of JSON objects that encode types unknown to JSON
_HEADER = "astkit"


class DamagedError(ValueError):
    """A state file whose content does not match its digest or format."""


class Packed:
    """A copy of ``state``: a JSON tree, and CPU tensors referenced by name from its leaves.

    ``state``: nested mappings, lists and tuples of tensors, strings, numbers, booleans and None;
    raises ``ValueError`` for other types. Tied weights are copied once.
    """

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[Hashable, str] = {}
        self.tree = self._pack(state, "")

    def _pack(self, value: Any, place: str) -> Any:
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {_KIND: "float", "value": repr(value)}
        if isinstance(value, Tensor):
            return self._tensor(value.detach(), place)
        if isinstance(value, Mapping):
            if all(isinstance(key, str) for key in value) and _KIND not in value:
                return {key: self._pack(part, f"{place}/{key}") for key, part in value.items()}
            items = [[key, self._pack(part, f"{place}/{key}")] for key, part in value.items()]
            return {_KIND: "mapping", "items": items}
        if isinstance(value, list | tuple):
            parts = [self._pack(part, f"{place}/{number}") for number, part in enumerate(value)]
            return parts if isinstance(value, list) else {_KIND: "tuple", "items": parts}
        raise ValueError(
            f"{place.strip('/')} is a {type(value).__name__}, which a checkpoint cannot hold: let"
            " the state_dict give numbers, strings, tensors, or lists and mappings of them"
        )

    def _tensor(self, tensor: Tensor, place: str) -> dict[str, Any]:
        leaf: dict[str, Any] = {_KIND: "tensor"}
        if not tensor.is_contiguous() and _dense(tensor.shape, tensor.stride()):
            leaf["strides"] = list(tensor.stride())  # such as channels_last: may affect kernels
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if not tensor.numel() or key not in self._names:
            self._names[key] = name = place.strip("/")
            self.tensors[name] = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
        return {**leaf, "name": self._names[key]}


def write(folder: Path, stem: str, packed: Packed, compress: bool = False) -> Path:
    """Write ``packed`` as ``folder/<stem>_<digest>.safetensors``, atomically; returns the path.

    A compressed file ends in ``.gz``; a state whose compression ratio exceeds the limit of ``read``
    is written uncompressed. Raises ``OSError`` if writing fails.
    """
    from safetensors.torch import save

    content = save(packed.tensors, {_HEADER: json.dumps(packed.tree, allow_nan=False)})
    ending = ""
    if compress:
        small = gzip.compress(content, compresslevel=1, mtime=0)
        if len(content) <= _most(len(small)):
            content, ending = small, ".gz"
    return files.write_atomic(folder / f"{stem}_{_digest(content)}{SUFFIX}{ending}", content)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The state stored in ``path``, with tensors on the CPU.

    Raises `DamagedError` for a damaged file, ``FileNotFoundError`` if there is none.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise DamagedError(f"{path} is not a regular file")
    content = path.read_bytes()
    digest = path.name.partition(SUFFIX)[0].rpartition("_")[2]
    if _digest(content) != digest:
        raise DamagedError(f"{path} is damaged: its content does not match the digest in its name")
    try:
        return _unpacked(_expanded(content) if path.suffix == ".gz" else content)
    except Exception as error:  # not written by `write`
        raise DamagedError(f"{path} holds no training state ({error})") from error


def _expanded(content: bytes) -> bytes:
    most = _most(len(content))
    with gzip.open(io.BytesIO(content)) as file:
        expanded = file.read(most + 1)
    if len(expanded) > most:
        raise ValueError(f"its {len(content):,} bytes expand to more than {most:,}")
    return expanded


def _most(size: int) -> int:
    return max(ALWAYS, EXPANSION * size)


def _unpacked(content: bytes) -> dict[str, Any]:
    from safetensors.torch import load

    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    state = _unpack(json.loads(header["__metadata__"][_HEADER]), load(content))
    if not isinstance(state, dict):
        raise TypeError(f"a {type(state).__name__} in place of a mapping")
    return state


def _unpack(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(tree, list):
        return [_unpack(part, tensors) for part in tree]
    if not isinstance(tree, dict):
        return tree
    kind = tree.get(_KIND)
    if kind is None:
        return {key: _unpack(part, tensors) for key, part in tree.items()}
    if kind == "tensor":
        return _with_strides(tensors[tree["name"]], tree.get("strides"))
    if kind == "float":
        return float(tree["value"])
    if kind == "tuple":
        return tuple(_unpack(part, tensors) for part in tree["items"])
    return {key: _unpack(part, tensors) for key, part in tree["items"]}


def _with_strides(tensor: Tensor, strides: Sequence[int] | None) -> Tensor:
    if strides is None:
        return tensor
    if not _dense(tensor.shape, strides):
        raise ValueError(f"strides {strides} for the shape {list(tensor.shape)}")
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def _dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor with these strides covers its memory without gaps."""
    reach = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    return reach + 1 == math.prod(shape)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGITS]
