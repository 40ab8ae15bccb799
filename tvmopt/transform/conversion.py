"""Pipeline of all conversions of a module: quantized lowering, mixed precision, layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import tvm

from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.transform.allow_tf32 import module_allowing_tf32
from tvmopt.transform.anchors import anchors
from tvmopt.transform.conv1d import conv1d_as_conv2d
from tvmopt.transform.integer import lower_quantized
from tvmopt.transform.layout import LayoutChange, convert_layout_with_report
from tvmopt.transform.precision import to_precision
from tvmopt.transform.raise_tensor_ir import raise_tensor_ir
from tvmopt.transform.recurrence import narrow_recurrences
from tvmopt.transform.simplify import simplify


@dataclasses.dataclass(frozen=True)
class Conversion:
    """A converted module, and the layers that were not converted.

    Attributes:
        mod: The module; its inputs and outputs are unchanged.
        kept: Reason why a layer kept its dtype or its layout, by layer index; layers skipped on
            request are not included.
        layout_changes: Inserted layout conversions of activations.
    """

    mod: tvm.IRModule
    kept: dict[int, str]
    layout_changes: tuple[LayoutChange, ...]

    @property
    def layout_change_bytes(self) -> int:
        """Bytes of all tensors that are converted between layouts."""
        return sum(change.bytes for change in self.layout_changes)


def convert_module(
    mod: tvm.IRModule,
    *,
    dtype: str = "float32",
    layout: str = "NCHW",
    skip_layers: Iterable[int] = (),
    keep_dtype: Iterable[int] = (),
    halves: Mapping[int, str] = MappingProxyType({}),
    allow_tf32: bool = False,
    narrow_norms: bool = False,
) -> Conversion:
    """Convert an imported module to a dtype and a layout.

    Quantized operators always become integer operators. For ``"int8"``, the module must come from
    a quantized model.

    Args:
        mod: An imported module.
        dtype: ``"float32"``, or a dtype that is ``convertible`` in the dtype table.
        layout: Layout of the convolutions; ``"NCHW"`` means no conversion.
        skip_layers: Indices of layers that keep dtype and layout.
        keep_dtype: Indices of layers that keep only their dtype.
        halves: Layers that compute in a 16-bit float other than ``dtype``, by index.
        allow_tf32: Whether float32 matmuls and convolutions may round to TF32 on a GPU.
        narrow_norms: Whether a LayerNorm may read 16 bits, such as a residual sum; for a GPU.
    """
    skip = sorted(set(skip_layers))
    same_dtype = sorted({*skip, *keep_dtype})
    reasons: dict[int, list[str]] = {}

    def keep(what: str, found: dict[int, str]) -> None:
        for index, why in found.items():
            asked = skip if what == "layout" else same_dtype
            if index not in asked:
                reasons.setdefault(index, []).append(f"{what}: {why}")

    mod = raise_tensor_ir(mod)
    integer = lower_quantized(mod)  # before constant folding, which would fold quantized weights
    mod = simplify(conv1d_as_conv2d(simplify(integer.mod)))
    if dtype == "int8":
        keep("dtype", {i: why for i, why in integer.floats.items() if i not in halves})
    for half in sorted(set(halves.values())):
        others = sorted({a.index for a in anchors(mod) if halves.get(a.index) != half})
        precision = to_precision(mod, half, skip_layers=others, narrow_norms=narrow_norms)
        mod = precision.mod
        keep("dtype", {i: why for i, why in precision.skipped.items() if halves.get(i) == half})
    if dtype in HALF_FLOATS:
        others = sorted({*same_dtype, *halves})
        precision = to_precision(mod, dtype, skip_layers=others, narrow_norms=narrow_norms)
        mod = precision.mod
        keep("dtype", {i: why for i, why in precision.skipped.items() if i not in halves})
    if dtype != "float32":
        mod = narrow_recurrences(mod, dtype, same_dtype)
    changes: tuple[LayoutChange, ...] = ()
    if layout != "NCHW":
        desired = {"nn.conv2d": layout}
        if layout == "NHWC":  # the only other layout of transposed convolutions
            desired["nn.conv2d_transpose"] = layout
        laid_out = convert_layout_with_report(mod, desired, skip_layers=skip)
        mod, changes = laid_out.mod, laid_out.changes
        keep("layout", laid_out.skipped)
    kept = {index: "; ".join(why) for index, why in sorted(reasons.items())}
    mod = simplify(mod)
    return Conversion(module_allowing_tf32(mod) if allow_tf32 else mod, kept, changes)
