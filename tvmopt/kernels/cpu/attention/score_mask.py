"""Masks of a vector of scores."""

from __future__ import annotations

import math

from tvm import tirx
from tvm.ir import Expr

from tvmopt.kernels.attention import AttentionProblem, MaskedBy


def masked_scores(
    problem: AttentionProblem, mask: tirx.Buffer | None, score: Expr, at: tuple[Expr, ...]
) -> Expr:
    """Return the score with both masks applied.

    Args:
        problem: The problem.
        mask: The mask operand.
        score: Scaled score.
        at: Batch, head, query and key.
    """
    _, _, s, t = at
    lowest = tirx.const(-math.inf, "float32")
    if mask is not None:
        value = mask[tuple(0 if int(e) == 1 else i for e, i in zip(mask.shape, at, strict=True))]
        if problem.mask_dtype == "bool":
            score = tirx.Select(value, score, lowest)
        else:
            score = score + value.astype("float32")
    if problem.causal is not MaskedBy.NOTHING:
        behind = 0 if problem.causal is MaskedBy.FIRST_KEY else problem.keys - problem.queries
        score = tirx.Select(t <= s + behind, score, lowest)
    return score
