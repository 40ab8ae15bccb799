"""Divide the time budget of a command, where layers may become int8.

Nothing bounds conversion and compilation. At ``time_budget=150`` calibration has 27 s, the
sensitivity analysis 27 s, the emulation of its maps half of that, untuned TVM 5 s, the
accuracy 9 s and the latency of each contender 1.5 s. The entry point ``main`` tunes in the rest,
once a model keeps the accuracy; others tune for 22 s.
"""

from __future__ import annotations

from tvmopt.search.shares import Share

#: Calibration of int8.
CALIBRATION = Share(0.18, 10.0)
#: The sensitivity analysis: which layer has which dtype.
ANALYSIS = Share(0.18, 15.0)
#: Tuning, where evaluation does not come first.
TUNING = Share(0.15, 10.0)
#: Untuned TVM: compilation, and what is measured of it; it is left out where it takes longer.
UNTUNED = Share(0.03, 5.0)
#: The accuracy of all contenders.
ACCURACY = Share(0.06, 2.0)
#: The latency of each contender.
LATENCY = Share(0.01, 1.0, 10.0)


def within(share: Share, budget_s: float, limit_s: float) -> float:
    """Return the least of a limit and a share of the budget; 0 is no limit and no budget."""
    limits = [s for s in (limit_s, share.seconds(budget_s) if budget_s else 0.0) if s]
    return min(limits, default=0.0)
