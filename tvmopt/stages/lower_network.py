"""Lower a converted network to what a build compiles: the network, and its fallback."""

from __future__ import annotations

import dataclasses

import tvm
from tvm import relax

from tvmopt.build import SizeModule
from tvmopt.device.target import TargetSpec
from tvmopt.transform.count_segments import count_segments
from tvmopt.transform.fallback import lower_direct, wants_fallback
from tvmopt.transform.lower import lower
from tvmopt.transform.plan import Plan


@dataclasses.dataclass(frozen=True)
class LoweredNetwork(SizeModule):
    """A lowered model of one size, and its number of segments for ONNX Runtime."""

    segments: int = 0


def lower_network(
    mod: tvm.IRModule,
    target: TargetSpec,
    *,
    plan: Plan | None = None,
    winograd: bool = True,
    lowered: tvm.IRModule | None = None,
) -> LoweredNetwork:
    """Lower a network, and on a CPU, where it has Winograd convolutions, with direct ones as well.

    Args:
        mod: A converted module.
        target: Target to compile for.
        plan: As of :func:`tvmopt.transform.lower.lower`.
        winograd: As of :func:`tvmopt.transform.lower.lower`.
        lowered: What ``lower`` returns for these arguments, where that is known.
    """
    llvm = target.to_tvm()
    if lowered is None:
        lowered = lower(mod, llvm, winograd=winograd, plan=plan)
    direct = None
    if target.arch().needs_fallback and _may_return_nan(mod) and wants_fallback(lowered):
        direct = lower_direct(mod, llvm, plan or {})
    return LoweredNetwork(lowered, None, direct, count_segments(mod))


def _may_return_nan(mod: tvm.IRModule) -> bool:
    """Return whether an output can hold NaN, upon which the runtime calls the fallback."""
    return any(dtype.startswith("float") for dtype in _dtypes(mod["main"].ret_ty))


def _dtypes(ty: tvm.ir.Type) -> list[str]:
    if isinstance(ty, relax.TupleType):
        return [dtype for field in ty.fields for dtype in _dtypes(field)]
    return [str(ty.dtype)] if isinstance(ty, relax.TensorType) else []
