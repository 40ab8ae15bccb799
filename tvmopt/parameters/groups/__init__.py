"""Groups of parameters that entry points are composed of; defaults and rules stand here only."""

from tvmopt.parameters.groups.conversion import (
    AccuracyParameters,
    AnalysisParameters,
    CalibrationParameters,
    ConversionParameters,
    QuantizationParameters,
    SensitivityLimitParameters,
    Tf32Parameters,
)
from tvmopt.parameters.groups.measurement import (
    BoardParameters,
    MeasurementParameters,
    MetricParameters,
    ProfileParameters,
)
from tvmopt.parameters.groups.model import ModelParameters
from tvmopt.parameters.groups.registry import (
    CandidateParameters,
    OutputParameters,
    ServerParameters,
    VersionParameters,
)
from tvmopt.parameters.groups.running import DryRunParameters, ReuseParameters, StageLimitParameters
from tvmopt.parameters.groups.search import (
    BudgetParameters,
    JoinParameters,
    SearchLimitParameters,
    SearchSpaceParameters,
    StudyParameters,
    TrialLimitParameters,
)
from tvmopt.parameters.groups.tuning import TuningParameters, WarmStartParameters

__all__ = [
    "AccuracyParameters",
    "AnalysisParameters",
    "BoardParameters",
    "BudgetParameters",
    "CalibrationParameters",
    "CandidateParameters",
    "ConversionParameters",
    "DryRunParameters",
    "JoinParameters",
    "MeasurementParameters",
    "MetricParameters",
    "ModelParameters",
    "OutputParameters",
    "ProfileParameters",
    "QuantizationParameters",
    "ReuseParameters",
    "SearchLimitParameters",
    "SearchSpaceParameters",
    "SensitivityLimitParameters",
    "ServerParameters",
    "StageLimitParameters",
    "StudyParameters",
    "Tf32Parameters",
    "TrialLimitParameters",
    "TuningParameters",
    "VersionParameters",
    "WarmStartParameters",
]
