"""Divide the time budget of one conversion, where layers may become int8.

Compilation and measurement have the rest. At ``time_budget=150`` calibration has 22 s, the
sensitivity analysis 37 s, and tuning 45 s.
"""

from __future__ import annotations

from tvmopt.search.shares import Share

#: Calibration of int8.
CALIBRATION = Share(0.15, 15.0)
#: The sensitivity analysis: which layer has which dtype.
ANALYSIS = Share(0.25, 20.0)
#: Tuning.
TUNING = Share(0.3, 10.0)


def within(share: Share, budget_s: float, limit_s: float) -> float:
    """Return the least of a limit and a share of the budget; 0 is no limit and no budget."""
    limits = [s for s in (limit_s, share.seconds(budget_s) if budget_s else 0.0) if s]
    return min(limits, default=0.0)
