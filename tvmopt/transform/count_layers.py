"""How many layers of some operators a module has.

Source: ``count_layers`` of apache/tvm pull request 6748, for Relay.
"""

from __future__ import annotations

from collections.abc import Iterable

import tvm

from tvmopt.errors import ConfigError
from tvmopt.transform.anchors import ANCHOR_OPS, anchors


def count_layers(mod: tvm.IRModule, ops: str | Iterable[str] | None = None) -> int:
    """Number of anchors of ``main`` whose operator is in ``ops``; None counts all.

    Args:
        mod: A module in Relax operators.
        ops: Names such as ``"nn.conv2d"``, ``"relax.nn.conv2d"`` or ``"matmul"``.

    Raises:
        ConfigError: When an operator is no anchor operator.
    """
    wanted = anchor_names(ops)
    return sum(anchor.op in wanted for anchor in anchors(mod))


def anchor_names(ops: str | Iterable[str] | None) -> frozenset[str]:
    """Names of anchor operators without their prefix; None is all of them.

    Raises:
        ConfigError: When an operator is no anchor operator.
    """
    known = {name.removeprefix("relax.") for name in ANCHOR_OPS}
    if ops is None:
        return frozenset(known)
    names = {op.removeprefix("relax.") for op in ([ops] if isinstance(ops, str) else ops)}
    unknown = sorted(names - known)
    if unknown:
        raise ConfigError(
            f"ops must be anchor operators ({', '.join(sorted(known))}), but got {unknown[0]!r}"
        )
    return frozenset(names)
