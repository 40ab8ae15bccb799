"""Steps of 8-bit data are found, and noise stays within half of one; other data has none."""

from __future__ import annotations

import numpy as np
import pytest

from tvmopt.evaluate.input_rounding import DRAWS, InputRounding

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 3, 20, 20))
MEAN = np.array([0.485, 0.456, 0.406])[:, None, None]
DEVIATION = np.array([0.229, 0.224, 0.225])[:, None, None]


@pytest.mark.parametrize(
    ("array", "steps"),
    [
        (PIXELS / 255, [1 / 255]),
        ((PIXELS - 127) / 128, [1 / 128]),
        (PIXELS // 2 * 2.0, [2.0]),
        ((PIXELS / 255 - MEAN) / DEVIATION, (1 / 255 / DEVIATION).ravel()),
        (((PIXELS / 255 - MEAN) / DEVIATION).transpose(0, 2, 3, 1), (1 / 255 / DEVIATION).ravel()),
        (((PIXELS / 255 - MEAN) / DEVIATION)[:, None], (1 / 255 / DEVIATION).ravel()),
    ],
)
def test_noise_is_uniform_within_half_a_step(array, steps) -> None:
    array = array.astype(np.float32)
    rounding = InputRounding({"x": array})
    assert rounding.found
    noise = rounding.again({"x": array[0]})["x"] - array[0]
    assert noise.dtype == np.float32
    axis = next((i for i, size in enumerate(noise.shape) if size == 3), 0)
    channels = np.moveaxis(noise, axis, 0) if len(steps) > 1 else noise[None]
    for channel, step in zip(channels, steps, strict=True):
        assert 0.95 * step / 2 < np.abs(channel).max() <= 1.001 * step / 2
        assert channel.std() == pytest.approx(step / np.sqrt(12), rel=0.1)


@pytest.mark.parametrize(
    "array",
    [
        RNG.standard_normal((10, 500)),  # no grid
        RNG.integers(0, 17, (10, 64)).astype(np.float32),  # counts
        RNG.integers(0, 2, (10, 500)).astype(np.float32),  # flags
        RNG.integers(0, 30000, (10, 2000)) / 32768,  # 16 bits
        RNG.integers(0, 256, (10, 3, 8, 8)).astype(np.uint8),  # no noise fits between
        np.sort(RNG.standard_normal(100)).repeat(10).reshape(10, 100),  # few values, on no grid
        np.full((4, 10), np.nan),
        np.zeros((0, 5)),
    ],
)
def test_other_data_has_no_step(array) -> None:
    rounding = InputRounding({"x": array})
    assert not rounding.found
    assert rounding.first_outputs(lambda inputs: [inputs["x"]], {"x": array}) == []


def test_first_outputs_are_of_draws_and_other_inputs_stay() -> None:
    arrays = {"x": (PIXELS / 255).astype(np.float32), "n": np.arange(6)}
    rounding = InputRounding(arrays)
    seen = []

    def model(inputs):
        seen.append(inputs["n"])
        return [inputs["x"], None]

    inputs = {name: array[1] for name, array in arrays.items()}
    found, other = (rounding.first_outputs(model, inputs) for _ in range(2))
    assert len(found) == DRAWS and not np.array_equal(found[0], other[0])
    assert seen == [1] * 2 * DRAWS
