"""Shares of a study's time budget: what each part of a search may take of it at most.

Trials have the rest. At ``time_budget=600`` the baseline has 36 s, calibration and the
sensitivity analysis 60 s each, and the end of the search 60 s.
"""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Share:
    """A share of the time budget with bounds in seconds.

    Attributes:
        of_budget: Fraction of the budget.
        least_s: Seconds that a small budget grants all the same.
        most_s: Seconds that a large budget, or none, grants at most.
    """

    of_budget: float
    least_s: float = 0.0
    most_s: float = math.inf

    def seconds(self, budget_s: float) -> float:
        """Return the seconds of a budget of ``budget_s`` seconds; ``most_s`` for 0: no budget."""
        if not budget_s:
            return self.most_s
        return min(self.most_s, max(self.least_s, self.of_budget * budget_s))


#: All stages of trial zero together: untuned TVM may be a hundred times as slow as ONNX Runtime.
BASELINE = Share(0.06, 30.0)
#: Of trial zero: its accuracy, its latency, and ONNX Runtime's latency, each.
BASELINE_MEASUREMENT = Share(0.005, 0.5, 10.0)
#: Calibration of int8.
CALIBRATION = Share(0.1, 10.0)
#: The sensitivity analysis.
ANALYSIS = Share(0.1, 10.0)
#: The accuracy of every other trial; without a budget all of the data is seen.
TRIAL_ACCURACY = Share(0.02, 2.0)
#: Of the last round: the latency of each contender, and again the accuracy of the first one.
FINALS_MEASUREMENT = Share(0.008, 1.0, 10.0)
#: Last round, registration and report.
ENDING = Share(0.1, 0.0, 90.0)
#: Multiple of its share at which a stage that bounds its own time is stopped all the same.
STOPPED_AT = 1.5
