"""Files that the parameters of a metric name: the user's function, or an alphabet."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tvmopt.digest import sha256_file
from tvmopt.errors import ConfigError
from tvmopt.metrics.own import file_of, with_whole_path
from tvmopt.parameters.groups import MetricParameters


def with_whole_paths(asked: MetricParameters) -> MetricParameters:
    """Return the parameters with absolute paths.

    Raises:
        ConfigError: When a file does not exist.
    """
    alphabet = asked.metric_alphabet
    if alphabet:
        path = Path(alphabet).expanduser().resolve()
        if not path.is_file():
            raise ConfigError(
                f"metric_alphabet must be an existing file, but there is none at '{path}'"
            )
        alphabet = str(path)
    return dataclasses.replace(
        asked, metric=with_whole_path(asked.metric), metric_alphabet=alphabet
    )


def digest_of_file(asked: MetricParameters) -> str:
    """Return the sha256 of the file; empty without one. No metric has both."""
    path = file_of(asked.metric) or (Path(asked.metric_alphabet) if asked.metric_alphabet else None)
    return "" if path is None else sha256_file(path)
