"""Layout conversion of convolutions: the pass, its scoped settings, and its report."""

from tvmopt.transform.layout.config import LayoutConfig
from tvmopt.transform.layout.convert import convert_layout, convert_layout_with_report
from tvmopt.transform.layout.report import LayoutChange, LayoutResult

__all__ = [
    "LayoutChange",
    "LayoutConfig",
    "LayoutResult",
    "convert_layout",
    "convert_layout_with_report",
]
