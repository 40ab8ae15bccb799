"""Attributes of a PrimFunc: scheduled or not, constant parameters, nothing fused with it."""

from __future__ import annotations

from tvm import tirx

SCHEDULED_ATTR = "tirx.is_scheduled"
#: Attribute of a generated kernel before the passes of its device.
UNFINISHED_ATTR = "tvmopt.unfinished"
#: Attribute of a function that was rewritten before it was scheduled, so that its trace does not
#: replay on the original: a tuning database holds its configuration only.
REWRITTEN_ATTR = "tvmopt.rewritten"
#: Attribute with the parameters of a PrimFunc that are constants, by index; TVM's lowering sets it.
FREE_ATTR = "layout_free_buffers"
#: Value of the attribute ``op_pattern`` with which FuseOps fuses nothing.
OPAQUE = 8  # relax.op.OpPatternKind.kOpaque


def marked(scheduled: tirx.PrimFunc, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``scheduled`` with ``SCHEDULED_ATTR`` set and the attributes of ``func`` copied."""
    for key, value in (func.attrs or {}).items():
        scheduled = scheduled.with_attr(key, value)
    return mark(scheduled)


def mark(scheduled: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``scheduled`` with ``SCHEDULED_ATTR`` set."""
    return scheduled.with_attr(SCHEDULED_ATTR, True)
