"""The output of attention: the transpose that follows is part of the function."""

from __future__ import annotations

import dataclasses

from tvm import relax

from tvmopt.kernels.attention.problem import AXES
from tvmopt.transform.attention.match import FoundAttention
from tvmopt.transform.attention.producers import Producers


@dataclasses.dataclass(frozen=True)
class AttentionOutput:
    """Tensor that the function's output replaces.

    Attributes:
        var: The variable that is replaced.
        axes: The order of the axes of the output.
    """

    var: relax.Var
    axes: str


def output_of(found: FoundAttention, graph: Producers) -> AttentionOutput:
    """Return the result of ``found``, or its last transpose if nothing else reads it."""
    axes, var = found.axes, found.result
    while len(users := graph.users(var)) == 1 and users[0] is not None:
        transposed = graph.call(users[0], "permute_dims")
        if transposed is None:
            break
        var, order = users[0], transposed.attrs.axes
        places = map(int, order) if order is not None else reversed(range(len(axes)))
        axes = "".join(axes[place] for place in places)
    return AttentionOutput(var, "".join(letter for letter in AXES if letter not in axes) + axes)
