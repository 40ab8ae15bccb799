"""Recurrent layers on a GPU, under the emulator, against the kernels for CPUs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tvm

from tests.emulator.cuda import run
from tests.kernels.cuda.serial import H200
from tvmopt.device.target import resolve_target
from tvmopt.kernels.cpu import recurrence as on_cpu
from tvmopt.kernels.cuda import recurrence as on_gpu
from tvmopt.kernels.recurrence import Activation, Recurrence
from tvmopt.kernels.recurrence.operands import kernel_inputs, kernel_outputs
from tvmopt.kernels.scheduled import mark
from tvmopt.transform.cpu_pipeline import CPU_PIPELINE

_TILING = on_cpu.RecurrenceTiling(lanes=4, registers=16, threads=1)


def _layer(cell: str, **changed: Any) -> Recurrence:
    names = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
    activations = tuple(Activation(name) for name in names[cell])
    made = Recurrence(cell, 3, 1, 8, (False,), (activations,), ("gates", "weight"))
    made = dataclasses.replace(made, **changed)
    return dataclasses.replace(made, activations=(activations,) * made.directions)


def _values(recurrence: Recurrence) -> dict[str, np.ndarray]:
    """Return a value for each operand, the weight of each phase as (direction, unit, gate, k)."""
    rng = np.random.default_rng(0)
    found = {}
    shapes = on_gpu.weight_shapes(recurrence)
    for name, shape, dtype in kernel_inputs(recurrence, recurrence.hidden, shapes):
        if name == "lengths":
            found[name] = rng.integers(0, recurrence.steps + 2, shape).astype(dtype)
        else:
            found[name] = (rng.standard_normal(shape) / 3).astype(dtype)
    return found


def _on_cpu(recurrence: Recurrence, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    units = on_cpu.padded_units(recurrence, _TILING)
    assert units == recurrence.hidden
    arguments = []
    for name, value in values.items():
        if name.startswith("weight"):
            directions, _, gates, k = value.shape
            value = value.reshape(directions, -1, _TILING.lanes, gates, k).transpose(0, 1, 4, 3, 2)
        arguments.append(tvm.runtime.tensor(np.ascontiguousarray(value)))
    outputs = [
        tvm.runtime.tensor(np.full(shape, np.nan, dtype))
        for _, shape, dtype in kernel_outputs(recurrence, units)
    ]
    kernel = on_cpu.recurrence_kernel(recurrence, _TILING).with_attr("global_symbol", "main")
    built = tvm.tirx.build(kernel, resolve_target("host", 1).to_tvm(), pipeline=CPU_PIPELINE)
    built["main"](*arguments, *outputs)
    return [output.numpy() for output in outputs]


_LAYERS = {
    "lstm": _layer("LSTM"),
    "every operand": _layer(
        "LSTM", batch=3, hidden=12, reverse=(False, True), clip=0.4, input_forget=True,
        operands=("gates", "weight", "peepholes", "lengths", "initial_h", "initial_c"),
    ),
    "gru": _layer("GRU", linear_before_reset=True, operands=("gates", "weight", "bias")),
    "gru that resets first": _layer("GRU", batch=2, operands=("gates", "weight", "initial_h")),
    "rnn of many rows": _layer("RNN", batch=35, reverse=(True,)),
    "bfloat16 weights": _layer("LSTM", hidden=36, weight_dtype="bfloat16"),
    "float16 weights": _layer("GRU", hidden=12, weight_dtype="float16"),
    "more than one block of k": _layer("RNN", hidden=136, steps=2),
}  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", _LAYERS)
def test_results_are_those_of_a_cpu(name: str) -> None:
    layer = _LAYERS[name]
    values = _values(layer)
    expected = _on_cpu(layer, values)
    outputs = [*kernel_outputs(layer, layer.hidden), *on_gpu.scratch(layer)]
    empty = [np.full(shape, np.nan, dtype) for _, shape, dtype in outputs]
    found = run(mark(on_gpu.recurrence_kernel(layer)), list(values.values()), empty, H200)
    for ours, theirs in zip(found, expected, strict=False):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
