"""The attribute that marks a scheduled PrimFunc."""

from __future__ import annotations

from tvm import tirx

SCHEDULED_ATTR = "tirx.is_scheduled"


def marked(scheduled: tirx.PrimFunc, func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``scheduled`` with ``SCHEDULED_ATTR`` set and the attributes of ``func`` copied."""
    for key, value in (func.attrs or {}).items():
        scheduled = scheduled.with_attr(key, value)
    return scheduled.with_attr(SCHEDULED_ATTR, True)
