"""Rule-based CPU schedules for TensorIR functions: the ``default`` tuning strategy.

:func:`schedule_module` gives every function of a network a parallel and vectorised schedule in
seconds, without measuring. The rules of :data:`DEFAULT_RULES` are asked in order; one rule, or
template, lives in one file.
"""

from .apply import DEFAULT_RULES, schedule_function, schedule_module
from .base import Scheduled, ScheduleRule

__all__ = [
    "DEFAULT_RULES",
    "ScheduleRule",
    "Scheduled",
    "schedule_function",
    "schedule_module",
]
