"""Which configurations are worth trying: facts about a function and a CPU -> ranked hints."""

from .default import DefaultPolicy, Scheduled
from .first_choice import schedule_function, schedule_module

__all__ = ["DefaultPolicy", "Scheduled", "schedule_function", "schedule_module"]
