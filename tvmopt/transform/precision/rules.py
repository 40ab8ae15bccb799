"""Roles of operators in mixed precision.

A *carrier* moves or selects values and runs in the dtype of its stored input. A *register* operator
computes elementwise in float32 between loads and stores that may be 16-bit. A *reduction* does the
same with an accumulator. A *sensitive* operator reads and writes float32 and causes no 16-bit
storage; :data:`SENSITIVE` gives the reason for each operator.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import tvm
from tvm import relax

from tvmopt.errors import ConfigError
from tvmopt.kernels.call_tir import called_function, is_call_tir
from tvmopt.transform.response_norm import response_norm_of

from .fusion import INJECTIVE


class Role(enum.Enum):
    """Role of an operator; see the module docstring."""

    CARRIER = "carrier"
    REGISTER = "register"
    REDUCTION = "reduction"
    SENSITIVE = "sensitive"


_EXPONENTIAL = "an error of its argument is multiplied by the result"
_SINGULAR = "steep near 0, where a rounded argument changes the result most"
_CANCELS = "differences from a mean cancel the leading digits"
_SUMS = "sums of many terms lose the small ones"
_PERIODIC = "periodic: needs the absolute, not the relative, value of its argument"
_STEP = "rounds its argument, which may cross a step"
_ORDER = "decides by comparing, and rounded values tie"

SENSITIVE: dict[str, str] = {
    "nn.softmax": _EXPONENTIAL,
    "nn.log_softmax": _EXPONENTIAL,
    "nn.cross_entropy_with_logits": _EXPONENTIAL,
    "nn.nll_loss": _SUMS,
    "exp": _EXPONENTIAL,
    "power": _EXPONENTIAL,
    "sinh": _EXPONENTIAL,
    "cosh": _EXPONENTIAL,
    "tan": _SINGULAR,
    "log": _SINGULAR,
    "log_add_exp": _EXPONENTIAL,
    "sqrt": _SINGULAR,
    "rsqrt": _SINGULAR,
    "acos": _SINGULAR,
    "asin": _SINGULAR,
    "acosh": _SINGULAR,
    "atanh": _SINGULAR,
    "sin": _PERIODIC,
    "cos": _PERIODIC,
    "nn.batch_norm": _CANCELS,
    "nn.layer_norm": _CANCELS,
    "nn.group_norm": _CANCELS,
    "nn.instance_norm": _CANCELS,
    "nn.rms_norm": _SUMS,
    "variance": _CANCELS,
    "std": _CANCELS,
    "prod": "errors of the factors add up",
    "cumsum": _SUMS,
    "cumprod": "errors of the factors add up",
    "nn.avg_pool1d": _SUMS,
    "nn.avg_pool2d": _SUMS,
    "nn.avg_pool3d": _SUMS,
    "nn.adaptive_avg_pool1d": _SUMS,
    "nn.adaptive_avg_pool2d": _SUMS,
    "nn.adaptive_avg_pool3d": _SUMS,
    "floor": _STEP,
    "ceil": _STEP,
    "round": _STEP,
    "trunc": _STEP,
    "sign": _STEP,
    "floor_divide": _STEP,
    "floor_mod": _STEP,
    "mod": _STEP,
    "quantize": _STEP,
    "argmax": _ORDER,
    "argmin": _ORDER,
    "argsort": _ORDER,
    "sort": _ORDER,
    "topk": _ORDER,
}
"""Operators kept in float32 by rule, each with the reason."""

REDUCTIONS = frozenset({"sum", "mean", "max", "min"})
"""Add up (or compare) in float32; what they read may be stored low, its rounding averages out."""

NORMS = frozenset({"nn.layer_norm"})
"""Sensitive, or reductions where the target's kernels cast in registers and keep the row."""

CARRIERS = frozenset(
    {
        "reshape", "flatten", "permute_dims", "squeeze", "expand_dims", "broadcast_to", "concat",
        "split", "stack", "tile", "repeat", "flip", "strided_slice", "dynamic_strided_slice",
        "take", "gather_elements", "gather_nd", "index_tensor", "layout_transform", "nn.pad",
        "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d", "nn.pixel_shuffle", "nn.batch_flatten",
    }
)  # fmt: skip
"""Every value of the result is a value of an input (or a constant)."""


def op_name(value: relax.Expr | None) -> str:
    """Return the operator of a call without its prefix; for TensorIR calls, the function's name."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return ""
    if is_call_tir(value):
        return called_function(value).rstrip("0123456789").rstrip("_")
    return value.op.name.removeprefix("relax.")


def role(
    value: relax.Call, pattern: int, keep_float32: frozenset[str], narrow_norms: bool = False
) -> Role:
    """Return the role of a call with operator pattern ``pattern``.

    ``narrow_norms`` makes :data:`NORMS` reductions.

    Operators in no table are register operators when each output element depends on one element of
    each input, so that a cast fuses into them; otherwise they are sensitive.
    """
    name = op_name(value)
    if response_norm_of(value) is not None:
        return Role.REDUCTION
    if narrow_norms and name in NORMS - keep_float32:
        return Role.REDUCTION
    if name in keep_float32 or name in SENSITIVE:
        return Role.SENSITIVE
    if name in CARRIERS or (name == "image.resize2d" and value.attrs.method == "nearest_neighbor"):
        return Role.CARRIER
    if name in REDUCTIONS:
        return Role.REDUCTION
    return Role.REGISTER if pattern <= INJECTIVE else Role.SENSITIVE


def check_keep_float32(names: Iterable[str]) -> frozenset[str]:
    """Return operator names without their prefix.

    Raises:
        ConfigError: When Relax has no such operator.
    """
    if isinstance(names, str):
        names = [part.strip() for part in names.split(",") if part.strip()]
    known = set(tvm.ir.Op.list_op_names())
    wanted = [str(name).removeprefix("relax.") for name in names]
    for name in wanted:
        if f"relax.{name}" not in known:
            raise ConfigError(
                f"keep_float32 must hold Relax operators, but got {name!r}; "
                "name them as in nn.softmax, nn.relu, sigmoid or matmul"
            )
    return frozenset(wanted)
