"""Tell what is not in MLflow's store from a store that fails."""

from __future__ import annotations

from mlflow.exceptions import MlflowException

# MLflow's error codes for an id, a name or an alias that there is not. An id of another form is
# invalid, and an alias that is not there is, too.
_MISSING = ("INVALID_PARAMETER_VALUE", "NOT_FOUND", "RESOURCE_DOES_NOT_EXIST")


def is_missing(error: MlflowException) -> bool:
    """Return whether what was asked for is not there; else the store did not answer."""
    return error.error_code in _MISSING
