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


@pytest.fixture(scope="session")
def sizes_bundle(make_model, tmp_path_factory) -> Path:
    """Return a bundle of ``exp(x) + bias`` with ``x`` of (2, 16), (2, 8), (1, 16) and (1, 8)."""
    import numpy as np
    from onnx import helper

    import tvmopt

    nodes = [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Add", ["e", "bias"], ["y"])]
    shapes = {"x": ("float32", ["n", "s"])}, {"y": ("float32", ["n", "s"])}
    model = make_model(nodes, *shapes, {"bias": np.array([0.5], np.float32)})
    folder = tmp_path_factory.mktemp("sizes") / "bundle"
    tvmopt.compile(model, "n=1,2;s=8,16", threads=2, output=folder)
    return folder


@pytest.fixture
def copied(conv_bundle, tmp_path) -> Path:
    """Return a copy of the single-input bundle."""
    return Path(shutil.copytree(conv_bundle, tmp_path / "bundle"))
