"""Shapes and dtypes of a module's outputs."""

from __future__ import annotations

import dataclasses

import tvm


@dataclasses.dataclass(frozen=True)
class OutputSpec:
    """Shape and dtype of an output; the shape is empty where it is known at run time only."""

    shape: tuple[int, ...]
    dtype: str


def output_specs(mod: tvm.IRModule) -> list[OutputSpec]:
    """Return shape and dtype of each output of ``main``."""
    ty = mod["main"].ret_ty
    fields = ty.fields if isinstance(ty, tvm.ir.TupleType) else [ty]
    return [_spec(field) for field in fields]


def _spec(ty: tvm.ir.Type) -> OutputSpec:
    shape = getattr(ty.shape, "values", None) or ()
    static = all(isinstance(extent, tvm.tirx.IntImm) for extent in shape)
    return OutputSpec(tuple(int(e) for e in shape) if static else (), str(ty.dtype))
