"""The text bridge: batches say what single texts say, losses are those of a plain loop."""

from functools import partial

import pytest
import torch

from astkit import rng
from astkit.systems.lattice.text import BEGIN, END, PAD, UNKNOWN, TextBridge, Vocabulary
from tests.build import refused

TEXTS = ["the flow of the energy", "the cell", "energy of a cell", "a flow"]


@pytest.fixture
def bridge() -> TextBridge:
    return TextBridge(Vocabulary(TEXTS, 12), dim=6, cells=9, seed=1)


def test_the_vocabulary_holds_the_most_frequent_words():
    words = Vocabulary(TEXTS, 7)
    # the 3 times; a, cell, energy, flow, of twice: by alphabet
    assert words.tokens[4:] == ("the", "a", "cell")
    assert words.encode(["The cell, of a"], 6).tolist() == [[4, 6, UNKNOWN, 5, END, PAD]]
    assert words.encode(["a a a"], 3).tolist() == [[5, 5, 5]]  # cut: no end mark


def test_a_vocabulary_without_words_is_refused():
    words = "size is {}: give a whole number of 5 or more"
    refused(*((partial(Vocabulary, TEXTS, size), words.format(size)) for size in (2, 4, 7.5)))


def test_word_losses_are_those_of_a_loop_over_rows_and_words(bridge):
    tokens = bridge.vocabulary.encode(TEXTS, 5)
    surface = torch.randn(4, 9, generator=rng.generator(2))
    fast = bridge.word_losses(surface, tokens)
    decoder = bridge.decoder
    for row, loss in enumerate(fast):
        state = decoder.start(surface[row])[None]
        heard, total, count = BEGIN, torch.zeros(()), 0
        for token in tokens[row].tolist():
            if token == PAD:
                break
            said, state = decoder.gru(decoder.words(torch.tensor([heard])), state)
            total = total - decoder.out(said[0]).log_softmax(0)[token]
            heard, count = token, count + 1
        assert loss.item() == pytest.approx(total.item() / count, rel=1e-5)


def test_padding_changes_no_embedding(bridge):
    short = bridge.vocabulary.encode(TEXTS, 5)
    long = bridge.vocabulary.encode(TEXTS, 11)
    torch.testing.assert_close(bridge.encoder(short)[1:], bridge.encoder(long)[1:])
    assert bridge.encode(TEXTS).norm(dim=1).tolist() == pytest.approx([1.0] * 4)


def test_a_batch_says_what_its_rows_say_alone(bridge):
    surface = 3 * torch.randn(7, 9, generator=rng.generator(3))
    together = bridge.decoder.greedy(surface, 5)
    alone = torch.cat([bridge.decoder.greedy(row[None], 5) for row in surface])
    assert torch.equal(together, alone)
    assert bridge.decode(surface) == bridge.vocabulary.decode(bridge.decoder.greedy(surface, 24))


def test_greedy_takes_the_likeliest_word_each_time(bridge):
    surface = 3 * torch.randn(7, 9, generator=rng.generator(4))
    with torch.no_grad():  # a mark that ends about every third word
        bridge.decoder.out.bias[END] += 0.8
    said = bridge.decoder.greedy(surface, 5)
    logits = bridge.decoder(surface, said)
    logits[..., [number for number in range(4) if number != END]] = -torch.inf  # no words
    likeliest = logits.argmax(-1)
    ends = [row.index(END) + 1 if END in row else 5 for row in said.tolist()]
    assert min(ends) < 5  # or the padding would not be tested
    for row, end in enumerate(ends):
        assert said[row, :end].tolist() == likeliest[row, :end].tolist()
        assert not said[row, end:].any()
