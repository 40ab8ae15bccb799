"""Count the layers of a module by operator.

Source: ``count_layers`` of apache/tvm pull request 6748, for Relay.
"""

from __future__ import annotations

from collections.abc import Iterable

import tvm

from tvmopt.errors import ConfigError
from tvmopt.transform.anchors import ANCHOR_OPS, anchors


def count_layers(mod: tvm.IRModule, ops: str | Iterable[str] | None = None) -> int:
    """Return the number of anchors of ``main`` whose operator is in ``ops``; None counts all.

    Args:
        mod: A module of Relax operators.
        ops: Names such as ``"nn.conv2d"``, ``"relax.nn.conv2d"`` or ``"matmul"``.

    Raises:
        ConfigError: When an operator is not an anchor operator.
    """
    wanted = anchor_names(ops)
    return sum(anchor.op in wanted for anchor in anchors(mod))


def anchor_names(ops: str | Iterable[str] | None) -> frozenset[str]:
    """Return names of anchor operators without their prefix; None returns all.

    Raises:
        ConfigError: When an operator is not an anchor operator.
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
