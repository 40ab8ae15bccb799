"""Packages that an exporter needs, which the user installs."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from tvmopt.errors import EnvironmentSetupError


def require_packages(packages: Sequence[str], of: str, install: str) -> None:
    """Refuse to export where a package is missing.

    Args:
        packages: Names to import.
        of: Whose models need them, such as ``"XGBoost"``.
        install: What follows ``pip install``.

    Raises:
        EnvironmentSetupError: When a package is not installed.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise EnvironmentSetupError(
                f"{package} must be installed to compile models of {of}, but it is not; run: "
                f"pip install {install}"
            )
