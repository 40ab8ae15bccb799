"""Generate the search space from a model, a target and the user's restrictions."""

from __future__ import annotations

from collections.abc import Sequence

from tvmopt.quantize import Sensitivity
from tvmopt.search.declared import Declared
from tvmopt.search.dimension import SearchedModel
from tvmopt.search.dimensions import DIMENSIONS
from tvmopt.search.space import Space


def generate_space(
    declared: Declared,
    dtypes: Sequence[str],
    convolutions: int,
    sensitivity: Sensitivity | None,
    *,
    has_large_trees: bool = False,
    on_gpu: bool = False,
) -> Space:
    """Return the search space.

    Args:
        declared: The user's restrictions.
        dtypes: As of :func:`choose_dtypes`.
        convolutions: How many convolutions the model has.
        sensitivity: What layers cost, for skip sets that are not declared; None to skip none.
        has_large_trees: Whether an ensemble of trees is so large that short keys may pay.
        on_gpu: Whether the target is a GPU.
    """
    model = SearchedModel(tuple(dtypes), convolutions, has_large_trees, sensitivity, on_gpu)
    return Space.of({d.key: d.values(declared, model) for d in DIMENSIONS})
