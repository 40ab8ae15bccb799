"""Say in one line what a library or the system refused, and keep the traceback for who wants it."""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback

from tvmopt.scratch import keep_report

#: Environment variable that has tracebacks printed.
DEBUG = "TVMOPT_DEBUG"
_LONGEST = 400
# What MLflow says when a server or database does not answer; errors of others have no code.
_AWAY = ("", "INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "DEADLINE_EXCEEDED", "IO_ERROR")


def explain(error: Exception) -> str:
    """One line for an exception that is none of ours: what failed, and what to do."""
    if isinstance(error, OSError) and not _is_of("requests", error):
        return _of_system(error)
    if _is_refusal(error):
        return (
            f"the tracking store {_store()} refused ({_code(error)}): {_reason(error)}; check the "
            "parameters, MLFLOW_RUN_ID, MLFLOW_EXPERIMENT_ID, MLFLOW_EXPERIMENT_NAME"
        )
    if _is_of("mlflow", error) or _is_of("sqlalchemy", error) or _is_of("requests", error):
        return (
            f"the tracking store {_store()} must answer, but: {_reason(error)}; "
            "start it, or check MLFLOW_TRACKING_URI"
        )
    return f"unexpected error: {type(error).__name__}: {_reason(error)}; {_kept(error)}"


def _of_system(error: OSError) -> str:
    where = f" ('{error.filename}')" if error.filename else ""
    what = error.strerror or str(error) or type(error).__name__
    cures = {
        errno.ENOSPC: "free space there, or set TMPDIR to a folder with more",
        errno.EDQUOT: "free space there, or set TMPDIR to a folder with more",
        errno.EROFS: "give a folder that can be written to",
        errno.EACCES: "give a folder that this user may use",
        errno.EPERM: "give a folder that this user may use",
        errno.EMFILE: "raise the limit of open files (ulimit -n)",
    }
    cure = cures.get(error.errno or 0, f"set {DEBUG}=1 to see where")
    return f"the system refused to go on: {what}{where}; {cure}"


def _is_of(package: str, error: Exception) -> bool:
    return any(kind.__module__.split(".")[0] == package for kind in type(error).__mro__)


def _is_refusal(error: Exception) -> bool:
    """Whether MLflow's store answered, and said no: it can be reached, and need not be started."""
    return _is_of("mlflow", error) and _code(error) not in _AWAY


def _code(error: Exception) -> str:
    return str(getattr(error, "error_code", ""))


def _store() -> str:
    from tvmopt.search.urls import masked_url

    return f"'{masked_url(os.environ.get('MLFLOW_TRACKING_URI', 'sqlite:///mlflow.db'))}'"


def _reason(error: Exception) -> str:
    from tvmopt.search.urls import without_known_secrets

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return without_known_secrets(lines[0] if lines else type(error).__name__)[:_LONGEST]


def _kept(error: Exception) -> str:
    """Keep the traceback in a private file; says where."""
    text = "".join(traceback.format_exception(error))
    try:
        path = keep_report(text)
    except OSError:
        return f"set {DEBUG}=1 to see where"
    return f"the traceback is in '{path}'"


def hide_tracebacks() -> None:
    """Keep MLflow from printing the traceback of what :func:`explain` says in one line."""
    logging.getLogger("mlflow.store.db.utils").addFilter(
        lambda record: not record.exc_info or _is_debugging()
    )


def _is_debugging() -> bool:
    return os.environ.get(DEBUG, "") not in ("", "0", "false")


def print_traceback(error: Exception) -> None:
    """Print the traceback where it was asked for."""
    if _is_debugging():
        traceback.print_exception(error, file=sys.stderr)
