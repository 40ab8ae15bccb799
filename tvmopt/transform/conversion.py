"""All conversions of a module, as one list: integers, number format, layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import tvm

from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.transform.integer import lower_quantized
from tvmopt.transform.layout import LayoutChange, convert_layout_with_report
from tvmopt.transform.precision import to_precision
from tvmopt.transform.raise_tensor_ir import raise_tensor_ir
from tvmopt.transform.simplify import simplify


@dataclasses.dataclass(frozen=True)
class Conversion:
    """A converted module and what was not converted.

    Attributes:
        mod: The module; inputs and outputs are those it had before.
        kept: Why a layer kept its number format or its layout, by layer number; layers that were
            asked to be skipped are not in it.
        layout_changes: Layout changes of activations that were inserted.
    """

    mod: tvm.IRModule
    kept: dict[int, str]
    layout_changes: tuple[LayoutChange, ...]

    @property
    def layout_change_bytes(self) -> int:
        """Bytes of all tensors that change layout."""
        return sum(change.bytes for change in self.layout_changes)


def convert_module(
    mod: tvm.IRModule,
    *,
    dtype: str = "float32",
    layout: str = "NCHW",
    skip_layers: Iterable[int] = (),
    keep_dtype: Iterable[int] = (),
) -> Conversion:
    """Bring ``mod``, as imported, to a number format and a layout.

    Quantised operators become integer ones whatever ``dtype``; for ``"int8"`` the module must have
    been imported from a quantised model.

    Args:
        mod: An imported module.
        dtype: ``"float32"``, or a dtype that is ``convertible`` in the dtype table.
        layout: Layout of the convolutions; ``"NCHW"`` leaves them alone.
        skip_layers: Numbers of layers to leave alone.
        keep_dtype: Numbers of layers that keep their number format, but not their layout.
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
    integer = lower_quantized(mod)  # before constants are folded: quantised weights are some
    mod = simplify(integer.mod)
    if dtype == "int8":
        keep("dtype", integer.floats)
    if dtype in HALF_FLOATS:
        precision = to_precision(mod, dtype, skip_layers=same_dtype)
        mod = precision.mod
        keep("dtype", precision.skipped)
    changes: tuple[LayoutChange, ...] = ()
    if layout != "NCHW":
        desired = {"nn.conv2d": layout}
        if layout == "NHWC":  # the one layout that transposed convolutions have besides
            desired["nn.conv2d_transpose"] = layout
        laid_out = convert_layout_with_report(mod, desired, skip_layers=skip)
        mod, changes = laid_out.mod, laid_out.changes
        keep("layout", laid_out.skipped)
    kept = {index: "; ".join(why) for index, why in sorted(reasons.items())}
    return Conversion(simplify(mod), kept, changes)
