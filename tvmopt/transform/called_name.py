"""The name of what a Relax call calls."""

from __future__ import annotations

import tvm
from tvm import relax


def called_name(call: relax.Call) -> str:
    """Return the name of an operator, of a packed function, or of another function if it has one.

    ``call_dps_packed`` and ``call_pure_packed`` count as calls of their packed function.
    """
    function = call.op
    if isinstance(function, tvm.ir.Op) and call.args and hasattr(call.args[0], "global_symbol"):
        function = call.args[0]
    return str(getattr(function, "global_symbol", "") or getattr(function, "name", ""))
