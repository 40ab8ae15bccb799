"""Find who computes inputs that need no conversion: their shapes and dtypes are compiled ones.

A small model computes for a microsecond, in which Python executes some twenty lines. Inputs that
fit as they are take one look-up here; all others take the checks and conversions of
:class:`tvmopt.runtime.model.CompiledModel`, which also word the errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tvmopt.runtime.metadata import TensorSpec

if TYPE_CHECKING:
    from tvmopt.runtime.callers import NativeCaller, TvmCaller
    from tvmopt.runtime.sizes import Shapes


class ExactCalls:
    """The callers of a model by the shapes of its inputs.

    Args:
        specs: The inputs.
    """

    __slots__ = ("_callers", "_dtypes", "_names", "_single")

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self._names = tuple(spec.name for spec in specs)
        self._dtypes = tuple(np.dtype(spec.dtype) for spec in specs)
        self._single = len(specs) == 1
        self._callers: dict[Shapes, NativeCaller | TvmCaller] = {}

    def add(self, shapes: Shapes, caller: NativeCaller | TvmCaller) -> None:
        """Let ``caller`` compute inputs of ``shapes``."""
        self._callers[shapes] = caller

    def find(
        self, inputs: np.ndarray | Mapping[str, np.ndarray]
    ) -> tuple[NativeCaller | TvmCaller | None, Sequence[np.ndarray]]:
        """Return who computes ``inputs``, and the arrays in order; None if they need a conversion.

        Args:
            inputs: What a call of the model takes.
        """
        if type(inputs) is np.ndarray and self._single:
            arrays: Sequence[np.ndarray] = (inputs,)
        elif type(inputs) is dict and len(inputs) == len(self._names):
            try:
                arrays = [inputs[name] for name in self._names]
            except KeyError:
                return None, ()
        else:
            return None, ()
        for array, dtype in zip(arrays, self._dtypes, strict=True):
            if type(array) is not np.ndarray or array.dtype != dtype:
                return None, ()
        return self._callers.get(tuple([array.shape for array in arrays])), arrays
