"""Run inputs that need no conversion: their shapes and dtypes are compiled ones.

A small model computes for a microsecond, in which Python executes some twenty lines. Inputs that
fit as they are find their caller by one look-up of their shapes here. All others take the checks
and conversions of :class:`tvmopt.runtime.model.CompiledModel`, which also word the errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tvmopt.runtime.metadata import TensorSpec

if TYPE_CHECKING:
    from tvmopt.runtime.callers import NativeCaller, TvmCaller
    from tvmopt.runtime.outputs import Outputs
    from tvmopt.runtime.sizes import Shapes


class ExactCalls:
    """The callers of a model by the shapes of its inputs.

    Args:
        specs: The inputs.
    """

    __slots__ = ("_callers", "_callers_of_one", "_dtypes", "_name", "_names")

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self._names = tuple(spec.name for spec in specs)
        self._name = self._names[0] if len(specs) == 1 else None
        self._dtypes = tuple(np.dtype(spec.dtype) for spec in specs)
        self._callers: dict[Shapes, NativeCaller | TvmCaller] = {}
        # The same ones of a model with a single input, with its dtype.
        self._callers_of_one: dict[
            tuple[int, ...], tuple[NativeCaller | TvmCaller, np.dtype[np.generic]]
        ] = {}

    def add(self, shapes: Shapes, caller: NativeCaller | TvmCaller) -> None:
        """Let ``caller`` compute inputs of ``shapes``."""
        self._callers[shapes] = caller
        if self._name is not None:
            self._callers_of_one[shapes[0]] = caller, self._dtypes[0]

    def run(self, inputs: np.ndarray | Mapping[str, np.ndarray]) -> Outputs | None:
        """Return the outputs of ``inputs``; None if they need a conversion or are refused.

        Args:
            inputs: What a call of the model takes.
        """
        array: np.ndarray | Mapping[str, np.ndarray] | None = inputs
        if type(inputs) is dict:
            if self._name is None or len(inputs) != 1:
                return self._run_several(inputs)
            array = inputs.get(self._name)
        if type(array) is np.ndarray:
            found = self._callers_of_one.get(array.shape)
            # Almost all arrays of one dtype share one object.
            if found is not None and (array.dtype is found[1] or array.dtype == found[1]):
                return found[0].run_one(array)
        return None

    def _run_several(self, inputs: dict[str, np.ndarray]) -> Outputs | None:
        if len(inputs) != len(self._names):
            return None
        arrays, shapes = [], []
        for name, dtype in zip(self._names, self._dtypes, strict=True):
            array = inputs.get(name)
            if type(array) is not np.ndarray or array.dtype != dtype:
                return None
            arrays.append(array)
            shapes.append(array.shape)
        caller = self._callers.get(tuple(shapes))
        return None if caller is None else caller.run(arrays)
