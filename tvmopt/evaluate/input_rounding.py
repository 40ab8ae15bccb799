"""Round inputs anew: what the 8 bits of the data leave open about each value.

A pixel of an 8-bit image stands for any value within half a step. Uniform noise of that width gives
inputs that the data cannot tell from the recorded ones. Classes that the float model changes under
this noise are not determined by the data.

Steps are found in the data: float values on a grid of 64 to 256 levels. One grid holds for all
values, or one for each channel, where channels are normalised by their own mean and deviation.
Coarser data holds counts or categories, where half a step is no small change. Of finer data it is
negligible.

Source of the noise model: Widrow and Kollár, "Quantization Noise", Cambridge, 2008, chapter 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

DRAWS = 1
"""Draws of the noise for each sample: with two, an expected agreement varies as much as with one
(standard deviations of 0.0029 of 160 samples), and the float model runs three times a sample."""
_LEVELS = (64, 256)
_VALUES = 1 << 20  # of an input that are looked at
_MOST_CHANNELS = 4
_OFF_GRID = 0.02  # of a step; float32 rounds normalised values
_SEED = 20261128


class InputRounding:
    """Draw inputs that the data cannot tell from given ones.

    Args:
        arrays: Samples by input name; the first axis counts samples.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        found = {name: _steps(array) for name, array in arrays.items()}
        self._steps = {name: steps for name, steps in found.items() if steps is not None}
        self._rng = np.random.default_rng(_SEED)

    @property
    def found(self) -> bool:
        """Whether an input has a known step."""
        return bool(self._steps)

    def again(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return ``inputs`` with uniform noise of at most half a step; others as they are.

        Args:
            inputs: Arrays of one call of the model, by input name.
        """
        done = dict(inputs)
        for name, steps in self._steps.items():
            noise = self._rng.uniform(-0.5, 0.5, inputs[name].shape) * steps
            done[name] = (inputs[name] + noise).astype(inputs[name].dtype)
        return done

    def draws(self, inputs: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """Return ``inputs`` with noise for each draw; nothing where no step is known.

        Args:
            inputs: Arrays of one call of the model, by input name.
        """
        return [self.again(inputs) for _ in range(DRAWS)] if self.found else []

    def first_outputs(
        self,
        model: Callable[[dict[str, np.ndarray]], Sequence[np.ndarray]],
        inputs: Mapping[str, np.ndarray],
    ) -> list[np.ndarray]:
        """Return the first output of ``model`` for each draw; nothing where no step is known.

        Args:
            model: Takes arrays by input name.
            inputs: Arrays of one call.
        """
        return [np.array(model(draw)[0]) for draw in self.draws(inputs)]


def _steps(array: np.ndarray) -> np.ndarray | None:
    """Return the step of the values, to multiply with a sample; None where there is none.

    Args:
        array: Samples on the first axis.
    """
    if array.dtype.kind != "f" or array.ndim < 2 or not array.size:
        return None
    samples = max(1, _VALUES * len(array) // array.size)
    spread = np.linspace(0, len(array) - 1, min(samples, len(array))).astype(int)
    seen = array[np.unique(spread)]
    step = _step_of(seen)
    if step:
        return np.asarray(step)
    for axis in range(1, array.ndim):
        if 1 < array.shape[axis] <= _MOST_CHANNELS:
            steps = [_step_of(channel) for channel in np.moveaxis(seen, axis, 0)]
            if all(steps):
                return np.array(steps).reshape([-1] + [1] * (array.ndim - 1 - axis))
    return None


def _step_of(values: np.ndarray) -> float:
    """Return the distance of neighbouring levels; 0 for values on no grid of 8 bits."""
    levels = np.unique(values).astype(np.float64)
    least, most = _LEVELS
    if not least <= len(levels) or not np.isfinite(levels).all():
        return 0.0
    span, size = levels[-1] - levels[0], max(abs(levels[0]), abs(levels[-1]))
    # Values of one level may differ in their last digit.
    gaps = np.diff(levels)
    step = float(gaps[gaps > 1e-6 * size].min(initial=np.inf))
    if not least - 1 <= span / step <= most - 1 + _OFF_GRID:
        return 0.0
    step = span / round(span / step)  # exact, where a gap holds errors of rounding
    places = (levels - levels[0]) / step
    return step if np.abs(places - np.rint(places)).max() <= _OFF_GRID else 0.0
