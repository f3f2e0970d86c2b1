"""The text pairs: frozen, split by their sources alone, and refused with a sentence."""

import gzip
import hashlib
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astkit.datasets import pairs
from astkit.datasets.pairs import docs_pairs, in_validation, read_pairs, words
from tests.build import refused

DATA = Path(__file__).parents[2] / "data"


def written(path, some):
    """``path`` with pairs as gzipped JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(json.dumps(asdict(p)) + "\n" for p in some).encode()))
    return path


def test_the_frozen_pairs_are_small_unique_and_prose():
    frozen = docs_pairs()
    assert len(frozen) >= 2500
    assert (DATA / pairs.FILE).stat().st_size <= 2e6
    for side in ("source", "target"):
        assert len({" ".join(words(getattr(pair, side))) for pair in frozen}) == len(frozen)
    for pair in frozen:
        assert 3 <= len(words(pair.source)) <= 80
        assert not pair.target.startswith(("Parameters ---", "Parameters:", "Args:", "Returns:"))
    origins = {pair.origin.split()[0] for pair in frozen}
    assert origins == {"python", "numpy", "torch"}


def test_the_licences_of_all_origins_lie_beside_them():
    text = (DATA / "docs_pairs.LICENSES.txt").read_text()
    for origin in {pair.origin for pair in docs_pairs()}:
        assert origin.replace("python", "Python") in text
    for owner in ("Python Software Foundation", "NumPy Developers", "Facebook, Inc"):
        assert owner in text
    readme = (DATA / "README.md").read_text()
    assert f"{len(docs_pairs()):,} pairs" in readme


@given(st.lists(st.text("abcXYZ09_", min_size=1), min_size=1, max_size=5))
def test_the_part_depends_on_the_words_alone(some):
    validating = in_validation("  ".join(some) + ".")
    assert in_validation(" ".join(some).upper()) == validating
    digest = hashlib.blake2b(" ".join(some).lower().encode(), digest_size=8).digest()
    assert validating == (int.from_bytes(digest, "big") / 2**64 < 0.15)


def test_a_line_that_is_no_pair_is_named(tmp_path):
    path = tmp_path / "user.jsonl"
    for line in ("no json", "[1]", '{"source": "a"}', '{"source": "a", "target": "!!"}'):
        path.write_text(json.dumps({"source": "a b", "target": "c"}) + "\n" + line + "\n")
        refused((partial(read_pairs, path), r"user\.jsonl line 2 is .*: give"))


def test_files_that_are_damaged_or_empty_are_refused(tmp_path):
    whole = written(tmp_path / "torn.jsonl.gz", docs_pairs()[:50]).read_bytes()
    (tmp_path / "torn.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.jsonl").write_text("\n")
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(ValueError, match=path.name):
            read_pairs(path)
    with pytest.raises(FileNotFoundError, match=r"absent\.jsonl"):
        read_pairs(tmp_path / "absent.jsonl")
