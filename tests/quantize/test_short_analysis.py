"""A sensitivity analysis with little time: gains, scaled errors, measurements that time cuts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmopt.evaluate.accuracy import Accuracy
from tvmopt.evaluate.dataset import Batch
from tvmopt.quantize.bar import Bar
from tvmopt.quantize.downstream import new_session
from tvmopt.quantize.extrapolated_loss import ExtrapolatedLoss
from tvmopt.quantize.joint import JointVerdict, Judge
from tvmopt.quantize.layer_dtypes import _as_measured
from tvmopt.quantize.report import LayerCost
from tvmopt.quantize.single_layers import _estimated_by_gain


def _cost(index: int, dtype: str, error: float, source: str) -> LayerCost:
    return LayerCost(index, f"n{index}", "Conv", dtype, source, error=error)


def _costs(**sources: dict[int, tuple[str, float]]) -> dict[tuple[int, str], LayerCost]:
    return {
        (index, dtype): _cost(index, dtype, error, source)
        for dtype, of in sources.items()
        for index, (source, error) in of.items()
    }


def test_a_gain_measured_in_one_dtype_stands_for_the_others() -> None:
    """Layer 0 has a gain of 0.5, layer 1 of 0.1, and the median of the two is layer 2's."""
    own = _costs(
        int8={0: ("estimated", 0.2), 1: ("estimated", 0.1), 2: ("estimated", 0.01)},
        bfloat16={0: ("estimated", 1e-4), 1: ("estimated", 1e-5), 2: ("estimated", 1.0)},
    )
    measured = _costs(int8={0: ("measured", 0.1), 1: ("measured", 0.01)})
    found = own | measured
    found |= _estimated_by_gain(found, own)
    errors = {key: cost.error for key, cost in found.items()}
    assert errors[0, "int8"] == 0.1 and errors[1, "int8"] == 0.01
    assert errors[0, "bfloat16"] == pytest.approx(0.5e-4)
    assert errors[1, "bfloat16"] == pytest.approx(0.1e-5)
    assert errors[2, "int8"] == pytest.approx(0.3 * 0.01)
    assert errors[2, "bfloat16"] == 1.0  # its own result is broken, whatever is downstream
    assert found[0, "bfloat16"].source == "estimated"


def test_without_a_measured_layer_errors_of_the_own_results_stay() -> None:
    own = _costs(int8={0: ("estimated", 0.2), 1: ("estimated", 0.1)})
    assert {key: cost.error for key, cost in _estimated_by_gain(own, own).items()} == {
        key: cost.error for key, cost in own.items()
    }


def test_an_overflow_gives_no_gain() -> None:
    own = _costs(float16={0: ("estimated", 0.5)}, int8={0: ("estimated", 0.1)})
    costs = own | _costs(float16={0: ("measured", math.inf)})
    assert _estimated_by_gain(costs, own)[0, "int8"].error == 0.1


def _verdict(drop: float, losses: tuple[float, ...] = ()) -> JointVerdict:
    return JointVerdict(Accuracy("fidelity", 1 - drop, 1.0, None, 0.9, drop, 4), False, losses)


@given(st.lists(st.floats(1e-6, 0.5), min_size=1, max_size=9), st.floats(1e-6, 0.5))
def test_errors_add_up_to_the_measured_loss_of_their_dtype(
    errors: list[float], loss: float
) -> None:
    costs = _costs(
        int8={n: ("measured", error) for n, error in enumerate(errors)},
        bfloat16={n: ("measured", error) for n, error in enumerate(errors)},
    )
    found = _as_measured(costs, {"int8": _verdict(0.1, (loss,))})
    assert sum(found[n, "int8"].error for n in range(len(errors))) / 2 == pytest.approx(loss)
    assert all(found[n, "bfloat16"].error == error for n, error in enumerate(errors))


def test_a_verdict_without_losses_scales_nothing() -> None:
    costs = _costs(int8={0: ("measured", 0.2)})
    assert _as_measured(costs, {"int8": _verdict(0.1)}) == costs


def test_a_power_of_few_samples_extrapolates_from_both_sides() -> None:
    """Between a map within the bar and one that misses it, the excess is linear in the loss."""
    for is_counted, allowed in ((False, 0.07 * 10 / 8), (True, 0.1 * (0.7 / 8) ** 2)):
        scale = ExtrapolatedLoss(is_counted=is_counted)
        scale.add(0.1, 8.0)
        scale.add(0.001, 0.08)
        assert scale.allowed(0.7, careful=True) == pytest.approx(
            allowed / (1 if is_counted else 10)
        )


def test_a_measurement_that_time_cuts_says_so(conv_model) -> None:  # type: ignore[no-untyped-def]
    name = conv_model.graph.input[0].name
    generator = np.random.default_rng(0)
    inputs = [generator.standard_normal((1, 3, 8, 8), np.float32) for _ in range(12)]
    batches = [Batch({name: x}, None, 1) for x in inputs]
    session = new_session(conv_model)
    expected = [session.run(None, batch.inputs) for batch in batches]
    judge = Judge(batches, expected, Bar(0.01))
    whole = judge(conv_model, "int8", math.inf, patient=True)
    assert not whole.is_cut and set(whole.drops) == set(range(12))
    cut = judge(conv_model, "int8", 0.0, patient=True)
    assert cut.is_cut and not cut.holds and len(cut.drops) == 1
    few = judge(conv_model, "int8", 0.0, most=4)
    assert not few.is_cut and len(few.drops) == 4
