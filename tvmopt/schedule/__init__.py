"""Templates: TensorIR function + hint -> scheduled function; one kernel shape a file.

Which hints are worth trying is the business of :mod:`tvmopt.policy`.
"""

from .apply import SCHEDULED_ATTR, TEMPLATES, NotApplicable, apply_hint, finish
from .base import Template
from .hint import Hint

__all__ = [
    "SCHEDULED_ATTR",
    "TEMPLATES",
    "Hint",
    "NotApplicable",
    "Template",
    "apply_hint",
    "finish",
]
