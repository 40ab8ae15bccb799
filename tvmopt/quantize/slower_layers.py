"""Find layers that are predicted to be slower in a narrow dtype than in float32.

The kernel cost model predicts each layer alone in both dtypes. Variable elimination then chooses
the dtypes with the least time, with the changes of dtype between neighbouring layers
(:mod:`.layer_choices`). float32 must win by a clear margin, since predictions have errors. Where
the CPU multiplies bfloat16 in float32, bfloat16 must win by that margin, unless the convolution is
depthwise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
import tvm
from tvm import relax

from tvmopt.device.cpu import CpuArch
from tvmopt.device.dtypes import BYTE_INTEGERS, HALF_FLOATS
from tvmopt.device.dtypes import dtype as row_of
from tvmopt.device.target import TargetSpec
from tvmopt.frontend import Layer
from tvmopt.kernels.cpu.intrinsics import find_dot, find_tile
from tvmopt.quantize.graph import Graph
from tvmopt.quantize.kernel_times import layer_cycles
from tvmopt.quantize.layer_choices import LayerChoice, dtype_changes
from tvmopt.quantize.layer_times import FLOAT
from tvmopt.transform.anchors import Anchor, anchors
from tvmopt.transform.integer.values import static_shape
from tvmopt.transform.precision.anchor_call import TYPED_ANCHORS, operand_dtypes
from tvmopt.transform.single_layer import FLOAT_OPERANDS, layer_key
from tvmopt.tune.assignment import minimise

# A layer keeps float32 where that saves at least this share of its predicted cycles.
# Predictions of single kernels have errors of about 10 %, and two are compared. Where both dtypes
# multiply in float32 (:func:`_widens`), the narrow one must save this share: it adds instructions,
# and saves nothing but memory traffic. That traffic bounds depthwise convolutions, whose cost model
# is fit to both dtypes: they keep bfloat16 in doubt.
_MARGIN = 0.2
# Layers with a smaller share of the network's FLOPs are not predicted; they keep their dtype.
_LEAST_SHARE = 0.005
# Dense layers with at least this K fill dot-product instructions and need no prediction.
_LEAST_K = 16


def slower_layers(
    mod: tvm.IRModule,
    model: onnx.ModelProto,
    layers: Sequence[Layer],
    target: TargetSpec,
    keep: Collection[int] = (),
) -> dict[int, str]:
    """Return the layers to leave in float32, by index, each with the reason.

    Args:
        mod: The converted module, with layers in int8 or a 16-bit float.
        model: The prepared float model.
        layers: Its layer table.
        target: A CPU; for a GPU no layer is returned.
        keep: Indices of layers whose dtype is decided.
    """
    arch = target.arch()
    if not isinstance(arch, CpuArch):
        return {}  # a GPU's kernels in narrow dtypes are faster; its cost models rank within one
    narrow = _narrow_anchors(mod, keep)
    predicted = predicted_cycles(narrow, layers, target)
    choices = [
        LayerChoice(
            index,
            layers[index].name,
            (FLOAT, _dtype(anchor.call)),
            predicted.get(index, (math.inf, 0.0)),
            (0.0, 0.0),
        )
        for index, anchor in narrow.items()
    ]
    widened = {
        index
        for index, anchor in narrow.items()
        if _widens(anchor.call, target) and channels_of(anchor.call) > 1
    }
    changes = dtype_changes(Graph(model.graph), choices, arch.l3_bandwidth * arch.cores)
    return {
        choice.index: reason(choice, choice.index in widened)
        for choice, at in zip(choices, least_time(choices, changes, widened), strict=True)
        if at == 0
    }


def least_time(
    choices: Sequence[LayerChoice],
    changes: Mapping[tuple[int, int], np.ndarray],
    widened: Collection[int] = (),
) -> tuple[int, ...]:
    """Return the position of the chosen dtype of each layer.

    Args:
        choices: Layers with two dtypes each, float32 first; ``seconds`` in any unit.
        changes: Time of changes of dtype in that unit, see
            :func:`~tvmopt.quantize.layer_choices.dtype_changes`.
        widened: Indices of layers for which the narrow dtype must win by the margin.
    """
    unary = []
    for one in choices:
        as_float, as_narrow = one.seconds
        margin = _MARGIN * as_narrow
        is_wide = one.index in widened
        unary.append((as_float, as_narrow + margin) if is_wide else (as_float + margin, as_narrow))
    return minimise(unary, changes, starts=[[1] * len(choices)]).choice


def predicted_cycles(
    narrow: Mapping[int, Anchor], layers: Sequence[Layer], target: TargetSpec
) -> dict[int, tuple[float, float]]:
    """Return the predicted cycles of layers in float32 and in their dtype, by index.

    Left out are layers that need no prediction: few FLOPs; a large K and dot-product instructions
    in the dtype; or faster in the dtype than the peak of float32 allows. Layers that multiply in
    float32 in both dtypes are all predicted: between two layers in float32, a light one in the
    narrow dtype costs two changes. Equal layers are predicted once.

    Args:
        narrow: Layers by index.
        layers: The layer table.
        target: A CPU.
    """
    arch = target.arch()
    assert isinstance(arch, CpuArch)
    least_flops = _LEAST_SHARE * sum(layer.flops or 0 for layer in layers)
    peak_flops = 2 * arch.cores * arch.fma_ports * arch.lanes(FLOAT)  # in a cycle

    known: dict[tuple[object, ...], tuple[float, float] | None] = {}
    found = {}
    for index, anchor in narrow.items():
        flops, call = layers[index].flops, anchor.call
        widens = _widens(call, target)
        if flops is None:
            continue
        if not widens and (flops < least_flops or _fills_dot_products(call, target)):
            continue
        key = layer_key(call)
        if key not in known:
            as_narrow = layer_cycles(call, operand_dtypes(call), target)
            can_be_slower = widens or flops / peak_flops < (1 - _MARGIN) * as_narrow
            known[key] = None
            if can_be_slower:
                known[key] = layer_cycles(call, FLOAT_OPERANDS, target), as_narrow
        if (both := known[key]) is not None:
            found[index] = both
    return found


def reason(choice: LayerChoice, is_widened: bool = False) -> str:
    """Return why a layer stays in float32.

    Args:
        choice: The layer.
        is_widened: Whether the narrow dtype had to win by the margin.
    """
    share, dtype = 100 * choice.seconds[0] / choice.seconds[1], choice.dtypes[1]
    text = f"slower_layers: float32 is predicted to take {share:.0f}% of the time of {dtype}"
    return f"{text}, which this CPU multiplies in float32" if is_widened else text


def _narrow_anchors(mod: tvm.IRModule, keep: Collection[int]) -> dict[int, Anchor]:
    """Return the layers that compute in int8 or 16 bits, by index, if they have one anchor each."""
    found: dict[int, Anchor] = {}
    twice = set(keep)
    for anchor in anchors(mod):
        if anchor.index in found:
            twice.add(anchor.index)
        if anchor.op in TYPED_ANCHORS and _is_narrow(anchor.call):
            found[anchor.index] = anchor
    return {index: anchor for index, anchor in sorted(found.items()) if index not in twice}


def _dtype(call: relax.Call) -> str:
    """Return the narrow dtype of a layer in the words of ``dtype``: int8, also for uint8 data."""
    name = str(call.args[0].ty.dtype)
    return "int8" if name in BYTE_INTEGERS else name


def _is_narrow(call: relax.Call) -> bool:
    return all(
        static_shape(arg) is not None and str(arg.ty.dtype) in (*BYTE_INTEGERS, *HALF_FLOATS)
        for arg in call.args[:2]
    )


def _fills_dot_products(call: relax.Call, target: TargetSpec) -> bool:
    """Return whether the CPU has dot-product instructions for the dtype, and K fills them.

    Whether a layer that :func:`_widens` can use them is not asked here.
    """
    row = row_of(str(call.args[0].ty.dtype))
    has_instructions = row.dot_k > 1 and row.cpu_rate(target.cpu_flags) > 1
    return has_instructions and channels_of(call) >= _LEAST_K and _has_contiguous_k(call)


def _widens(call: relax.Call, target: TargetSpec) -> bool:
    """Return whether a CPU multiplies a layer in float32, on operands widened from bfloat16.

    Both kinds of instructions need contiguous channels; matrix tiles multiply no grouped
    convolution.
    """
    arch = target.arch()
    assert isinstance(arch, CpuArch)
    data, weight = (str(arg.ty.dtype) for arg in call.args[:2])
    if (data, weight) != ("bfloat16", "bfloat16"):
        return False
    if not _has_contiguous_k(call):
        return True
    grouped = call.op.name != "relax.matmul" and int(call.attrs.groups) > 1
    has_tile = find_tile(arch, data, weight) is not None and not grouped
    return not has_tile and find_dot(arch, data, weight) is None


def _has_contiguous_k(call: relax.Call) -> bool:
    """Return whether the reduction axis of the data is contiguous: NHWC or NCHW16c, not NCHW."""
    return call.op.name == "relax.matmul" or str(call.attrs.data_layout)[-1] in "Cc"


def channels_of(call: relax.Call) -> int:
    """Return the input channels of one group of a convolution, or K of a matmul."""
    weight = static_shape(call.args[1])
    assert weight is not None
    if call.op.name == "relax.matmul":
        return weight[-2] if len(weight) > 1 else weight[0]
    axes = [axis for axis in str(call.attrs.kernel_layout) if axis.isalpha()]
    inputs = [extent for axis, extent in zip(axes, weight, strict=True) if axis in "Ii"]
    return math.prod(inputs)
