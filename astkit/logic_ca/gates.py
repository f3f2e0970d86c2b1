"""The sixteen logic gates of two inputs, and the four coefficients that all of them share.

Every gate, and every mixture of gates, is ``c0 + c1 a + c2 b + c3 ab``. Source of the mixture:
Petersen et al., "Deep Differentiable Logic Gate Networks", NeurIPS 2022.
"""

from __future__ import annotations

from torch import Tensor, nn, tensor

BASIS: tuple[tuple[int, int, int, int], ...] = (
    (0, 0, 0, 0),  # FALSE
    (0, 0, 0, 1),  # AND
    (0, 1, 0, -1),  # A & !B
    (0, 1, 0, 0),  # A
    (0, 0, 1, -1),  # !A & B
    (0, 0, 1, 0),  # B
    (0, 1, 1, -2),  # XOR
    (0, 1, 1, -1),  # OR
    (1, -1, -1, 1),  # NOR
    (1, -1, -1, 2),  # XNOR
    (1, 0, -1, 0),  # !B
    (1, 0, -1, 1),  # A | !B
    (1, -1, 0, 0),  # !A
    (1, -1, 0, 1),  # !A | B
    (1, 0, 0, -1),  # NAND
    (1, 0, 0, 0),  # TRUE
)
"""Of each gate what 1, a, b and ab are multiplied with; an integer for inputs of 0 and 1.

A gate's index is its outputs for (a, b) = 00, 01, 10, 11 read as a number of four bits."""

PASS_THROUGH = 3
"""The gate "A", with which a new automaton passes its inputs through."""

FIRST_LOGIT, PAPERS_FIRST_LOGIT = 5.0, 10.0
"""Of that gate, the others 0: a share of .908 in the mixture, and of .99932 in the paper."""


def initial_logits(*shape: int, first: float = FIRST_LOGIT) -> Tensor:
    """Logits float32 ``[*shape, 16]`` of gates that pass ``a`` through."""
    logits = tensor([0.0]).new_zeros(*shape, len(BASIS))
    logits[..., PASS_THROUGH] = first
    return logits


def coefficients(logits: Tensor, hard: bool | Tensor = False) -> Tensor:
    """``[..., 4]`` of ``logits [..., 16]``: of the softmax mixture, or hard, of one gate.

    ``hard`` as a bool tensor ``[...]`` says which gates are hard; their gradients are those of the
    mixture all the same (straight through). Source: Bengio et al., "Estimating or Propagating
    Gradients Through Stochastic Neurons for Conditional Computation", 2013.
    """
    shares = logits.softmax(-1)
    if hard is not False:
        chosen = nn.functional.one_hot(logits.argmax(-1), len(BASIS)).to(logits.dtype)
        if hard is True:
            shares = chosen
        else:
            shares = shares + (chosen - shares).detach() * hard.unsqueeze(-1)
    return shares @ tensor(BASIS, dtype=logits.dtype, device=logits.device)
