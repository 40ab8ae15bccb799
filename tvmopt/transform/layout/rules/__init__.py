"""Layout rules by operator. Operators without a rule get operands in the original layout."""

from __future__ import annotations

from tvmopt.transform.layout.rules import axes, elementwise, pieces, response_norm, windows
from tvmopt.transform.layout.rules.base import Follow, Operands, Rule

_RULES: dict[str, Rule] = {
    **dict.fromkeys((*elementwise.UNARY, *elementwise.BINARY), elementwise.elementwise),
    "nn.prelu": elementwise.prelu,
    "quantize": elementwise.quantize,
    "dequantize": elementwise.quantize,
    **dict.fromkeys(axes.REDUCTIONS, axes.reduction),
    **dict.fromkeys(axes.ARGUMENTS, axes.argument),
    **dict.fromkeys(axes.SOFTMAX, axes.softmax),
    "nn.layer_norm": axes.layer_norm,
    "nn.instance_norm": axes.instance_norm,
    "call_dps_packed": response_norm.response_norm,
    "concat": pieces.concat,
    "stack": pieces.stack,
    "split": pieces.split,
    "strided_slice": pieces.strided_slice,
    "nn.pad": pieces.pad,
    "broadcast_to": pieces.broadcast_to,
    **dict.fromkeys(windows.POOLS, windows.pool),
    **dict.fromkeys(windows.ADAPTIVE, windows.adaptive_pool),
    "image.resize2d": windows.resize2d,
}
RULES = {f"relax.{name}": rule for name, rule in _RULES.items()}

__all__ = ["RULES", "Follow", "Operands", "Rule"]
