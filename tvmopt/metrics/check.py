"""Check the text of the parameter ``metric``."""

from __future__ import annotations

from tvmopt.choices import GOALS
from tvmopt.errors import ConfigError
from tvmopt.metrics.own import is_own

AGREEMENT, FLOAT_R2 = "agreement", "float_r2"
#: Metrics that compare with the float model; ``fidelity`` is one of the others.
FIDELITIES = ("fidelity", AGREEMENT, FLOAT_R2)
#: Metrics that compare with the float model, or take class indices; see
#: :mod:`tvmopt.evaluate.accuracy`.
BUILT_IN = ("auto", "top1", *FIDELITIES)
#: Metrics of texts, see :mod:`tvmopt.metrics.error_rates`.
ERROR_RATES = ("wer", "cer")


def check_metric(text: str, goal: str, alphabet: str = "") -> None:
    """Refuse a name that is none, and a goal or alphabet that does not fit; no file is opened.

    Raises:
        ConfigError: One line.
    """
    name = text.partition("@")[0]
    if (name in ERROR_RATES) != bool(alphabet):
        raise ConfigError(
            f"metric_alphabet must name a file with a symbol a line for {' and '.join(ERROR_RATES)}"
            f", and be empty else, but metric is {text!r} and metric_alphabet {alphabet!r}"
        )
    if text in BUILT_IN and not goal:
        return
    if is_own(text):
        if goal not in GOALS:
            raise ConfigError(
                f"metric_goal must be larger or smaller for a metric of your own, but metric is "
                f"{text!r} and metric_goal is {goal or 'empty'!r}; say what is better"
            )
        return
    from tvmopt.metrics.named import NAMED

    names = (*BUILT_IN, *NAMED, *ERROR_RATES)
    if name not in names or (name in BUILT_IN and "@" in text):
        raise ConfigError(
            f"metric must be one of {', '.join(names)}, with @output for one of "
            f"several outputs, or file.py:function, but got {text!r}"
        )
    if goal:
        raise ConfigError(
            f"metric_goal is for a metric of your own, but metric is {text!r}; leave it empty"
        )
