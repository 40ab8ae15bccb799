"""How the time of an analysis that chooses a dtype for each layer is divided.

Two kinds of work prepare the choice: the latency of single layers, and their errors. The choice
then needs measurements of the model with all layers in chosen dtypes. A reserve for these
measurements is set aside before the other work begins.
"""

from __future__ import annotations

import dataclasses

_MEASUREMENTS = 3  # of maps, that the reserve has time for
_THIRD = 1 / 3
_MOST_RESERVED = 1 / 2


@dataclasses.dataclass(frozen=True)
class PhaseDeadlines:
    """Ends of the phases; values are as of ``time.monotonic()``.

    Attributes:
        timing: End of timing layers.
        errors: Latest end of measuring errors of single layers, which comes next.
        share_s: Seconds that each of the two has.
    """

    timing: float
    errors: float
    share_s: float

    def further_errors(self, now: float) -> float:
        """Return the end of measuring a layer's error more than once, if errors begin ``now``."""
        return min(self.errors, now + self.share_s)


def phase_deadlines(now: float, deadline: float, measurement_s: float) -> PhaseDeadlines:
    """Divide the remaining time of an analysis.

    The reserve for maps is a third of the time or three measurements, if these take longer, but no
    more than half. The other phases have half of the rest each. What timing leaves goes to layers
    whose error is not known at all, then to the maps.

    Args:
        now: The time.
        deadline: End of the analysis.
        measurement_s: Seconds that a measurement of a converted model takes.
    """
    left = max(0.0, deadline - now)
    reserve = min(_MOST_RESERVED * left, max(_THIRD * left, _MEASUREMENTS * measurement_s))
    each = (left - reserve) / 2
    return PhaseDeadlines(now + each, deadline - reserve, each)
