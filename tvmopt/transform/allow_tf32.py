"""Allow TF32 in the GEMMs and convolutions of a module.

The convert stage marks ``main``; lowering marks each fused function with a float32 GEMM or
convolution, so that its tuning records and its check differ from exact float32.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx

from tvmopt.kernels.scheduled import SCHEDULED_ATTR, UNFINISHED_ATTR
from tvmopt.kernels.tf32 import ALLOW_TF32, allow_tf32


def module_allowing_tf32(mod: tvm.IRModule) -> tvm.IRModule:
    """Return ``mod`` with TF32 allowed in all its float32 GEMMs and convolutions."""
    marked = mod.clone()
    marked["main"] = mod["main"].with_attr(ALLOW_TF32, True)
    return marked


def module_allows_tf32(mod: tvm.IRModule) -> bool:
    """Return whether :func:`module_allowing_tf32` made ``mod``."""
    return bool((mod["main"].attrs or {}).get(ALLOW_TF32, False))


@tvm.transform.module_pass(opt_level=0, name="AllowTf32")
class AllowTf32:
    """Mark the fused functions that multiply float32 operands and accumulate."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Apply the pass to all functions that have no schedule yet."""
        marked = {
            var: allow_tf32(func)
            for var, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc)
            and not any(attr in (func.attrs or {}) for attr in (SCHEDULED_ATTR, UNFINISHED_ATTR))
            and _has_float32_gemm(func)
        }
        out = mod.clone()
        out.update(tvm.IRModule(marked))
        return out


def _has_float32_gemm(func: tirx.PrimFunc) -> bool:
    """Return whether a reduction accumulates products of two different float32 factors."""
    found: list[bool] = []

    def on_block(block: s_tir.SBlock) -> None:
        value = getattr(block.body, "value", None)
        if block.init is None or not isinstance(value, tirx.Add):
            return
        found.extend(map(_is_product, (value.a, value.b)))

    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, on_block))
    return any(found)


def _is_product(value: ir.Expr) -> bool:
    if not isinstance(value, tirx.Mul) or str(value.ty.dtype) != "float32":
        return False
    a, b = value.a, value.b
    loads = all(isinstance(factor, ir.TensorLoad) for factor in (a, b))
    return loads and not tvm_ffi.structural_equal(a, b)
