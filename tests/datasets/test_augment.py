import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astkit.datasets.augment import Augment, crop


def slow(x, moves, pad):
    """Each image by itself, pixel by pixel."""
    out = torch.zeros_like(x)
    height, width = x.shape[2:]
    for i in range(len(x)):
        top = pad if moves.top is None else int(moves.top[i])
        left = pad if moves.left is None else int(moves.left[i])
        for row in range(height):
            for column in range(width):
                source = width - 1 - column if moves.flip is not None and moves.flip[i] else column
                y, z = row + top - pad, source + left - pad
                if 0 <= y < height and 0 <= z < width:
                    out[i, :, row, column] = x[i, :, y, z]
    return out


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([(), ("crop",), ("flip",), ("crop", "flip")]),
    st.integers(0, 3),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(0, 9),
    st.sampled_from([torch.uint8, torch.float32]),
)
def test_equals_the_slow_loop(names, pad, channels, width, seed, dtype):
    x = torch.randint(1, 256, (5, channels, 4, width)).to(dtype)
    augment = Augment(names, pad, seed)
    moves = augment.draw(torch.arange(5), epoch=seed)
    moved = augment.apply(x, moves)
    assert moved.dtype == dtype
    assert torch.equal(moved, slow(x, moves, pad))


def test_crop_takes_channels_last():
    x = torch.randint(1, 256, (2, 3, 5, 4), dtype=torch.uint8)
    top, left = torch.tensor([0, 2]), torch.tensor([1, 0])
    last = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(crop(last, top, left, 1), crop(x, top, left, 1))


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(12)), st.integers(0, 12), st.integers(0, 3))
def test_moves_depend_on_the_row_alone(order, cut, epoch):
    augment = Augment(("crop", "flip"), seed=5)
    whole = augment.draw(torch.arange(12), epoch)
    rows = torch.tensor(order[:cut], dtype=torch.int64)
    for part, expected in zip(augment.draw(rows, epoch), whole, strict=True):
        assert torch.equal(part, expected[rows])


def test_every_offset_occurs_and_epochs_differ():
    augment = Augment(("crop", "flip"), pad=2)
    first, second = (augment.draw(torch.arange(2000), epoch) for epoch in (0, 1))
    assert first.top.unique().tolist() == first.left.unique().tolist() == [0, 1, 2, 3, 4]
    assert 800 < int(first.flip.sum()) < 1200
    assert not torch.equal(first.top, first.left)
    assert not torch.equal(first.top, second.top)


def test_names_what_is_wrong():
    with pytest.raises(ValueError, match="augment has 'rotate'; choose from 'crop', 'flip'"):
        Augment(("rotate",))
    with pytest.raises(ValueError, match="pad is -1"):
        Augment(pad=-1)
    augment = Augment(("flip",))
    with pytest.raises(ValueError, match=r"shape \[2, 7\]"):
        augment.apply(torch.zeros(2, 7), augment.draw(torch.arange(2), 0))
