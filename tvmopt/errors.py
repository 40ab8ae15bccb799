"""Errors that users see. Each message is one line: the rule, the value got, what to do."""

from __future__ import annotations

from typing import TypeVar

from tvmopt.printable import one_line

_LONGEST = 4000


class TvmoptError(Exception):
    """Base of every error that is raised on purpose.

    ``failure_class`` is the value of the run tag ``tvmopt.failure_class``.

    Args:
        message: What is wrong. What a library said, or a name in a file, may be part of it, so the
            error keeps it on one line, without control characters, of at most 4,000 characters.
    """

    failure_class = "error"

    def __init__(self, message: object = "") -> None:
        text = one_line(str(message))
        super().__init__(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")


class ConfigError(TvmoptError):
    """A parameter breaks its rule. Entry points exit with code 2."""

    failure_class = "config"


class ModelError(TvmoptError):
    """The ONNX model is unreadable, dynamic without shapes, or otherwise not usable."""

    failure_class = "model"


class UnsupportedOperatorError(ModelError):
    """The model holds operators that cannot be imported; all are listed at once."""

    failure_class = "unsupported_operator"


class AccuracyError(TvmoptError):
    """Numbers differ from the reference beyond the stated tolerance."""

    failure_class = "accuracy"


class DatabaseMismatchError(TvmoptError):
    """A tuning database was written for another target, thread count or TVM version."""

    failure_class = "database_mismatch"


class TuneError(TvmoptError):
    """Tuning could not produce a usable result."""

    failure_class = "tune"


class BuildError(TvmoptError):
    """Code generation or linking failed."""

    failure_class = "build"


class ArtifactError(TvmoptError):
    """A compiled artifact is damaged, or was made for another machine or TVM version."""

    failure_class = "artifact"


class EnvironmentSetupError(TvmoptError):
    """Something is missing from, or wrong with, the installation."""

    failure_class = "environment"


class StageFailedError(TvmoptError):
    """A stage's child process failed; carries the class of the failure and its log."""

    def __init__(self, message: str, failure_class: str = "crash") -> None:
        super().__init__(message)
        self.failure_class = failure_class


class LimitError(TvmoptError):
    """A process passed its time (class ``timeout``) or its memory (class ``out_of_memory``)."""

    def __init__(self, message: str, failure_class: str = "timeout") -> None:
        super().__init__(message)
        self.failure_class = failure_class


class TrialTakenError(TvmoptError):
    """Another process ended the trial that this one worked on, taking it for dead."""

    failure_class = "taken"


class StudyAwayError(TvmoptError):
    """The database of studies could not be reached for longer than a process waits for it."""

    failure_class = "study_away"


class NothingFeasibleError(TvmoptError):
    """A search ended, and no artifact keeps to its limits."""

    failure_class = "nothing_feasible"


class PromotionRefusedError(TvmoptError):
    """A candidate does not meet the conditions for the alias it was proposed for.

    Args:
        message: As of the base.
        drop: Accuracy drop that exceeds the limit; 0 where it was refused for another reason.
        samples: Number of held-out samples that showed it; 0 for the evaluation samples.
    """

    failure_class = "promotion_refused"

    def __init__(self, message: object = "", drop: float = 0.0, samples: int = 0) -> None:
        super().__init__(message)
        self.drop = drop
        self.samples = samples


#: What TVM's passes, schedules, importer and runtime raise. Its own errors are RuntimeErrors; its
#: Python code fails where it uses what is missing. A fault of this program (NameError, ImportError)
#: or of the machine (MemoryError, OSError) is not among them.
TVM_ERRORS: tuple[type[Exception], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)

_First = TypeVar("_First", bound=TvmoptError)


def after_retry(first: _First, retry: str, second: TvmoptError) -> _First:
    """Return an error of the class of ``first`` that names it, and how the retry ended.

    Args:
        first: What was wrong at first: what the user has to know.
        retry: What was tried next, such as ``"float32 instead"``.
        second: What was wrong then.
    """
    if str(first) in str(second):  # the retry ended the same way, or says so itself
        return type(first)(second)
    half = _LONGEST // 2 - len(retry) - 30
    return type(first)(
        f"{in_one_line(first, half)}; tried next: {retry}, but {in_one_line(second, half)}"
    )


def last_line(error: object, most: int | None = 300) -> str:
    """The last line of what ``error`` says, which is where TVM and LLVM say what is wrong.

    Args:
        error: What was raised, or what it says.
        most: Characters that are kept; None for all.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.endswith("skipped ...)")]  # TVM says how many
    return lines[-1][:most] if lines else type(error).__name__


def in_one_line(error: Exception, most: int = 300) -> str:
    """What ``error`` says, in one line of at most ``most`` characters; else its class."""
    return one_line(" ".join(str(error).split()))[:most] or type(error).__name__
