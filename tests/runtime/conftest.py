"""Fixtures: compiled models, loaded, and copies that a test may damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def conv(conv_bundle):
    """Return the loaded single-input model."""
    from tvmopt.runtime import load

    return load(conv_bundle)


@pytest.fixture(scope="session")
def two(two_input_bundle):
    """Return the loaded model with two inputs and two outputs."""
    from tvmopt.runtime import load

    return load(two_input_bundle)


@pytest.fixture
def copied(conv_bundle, tmp_path) -> Path:
    """Return a copy of the single-input bundle."""
    return Path(shutil.copytree(conv_bundle, tmp_path / "bundle"))
