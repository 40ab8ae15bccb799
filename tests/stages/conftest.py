"""Fixtures: a real child process whose build stage runs the code of a test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Python imports this file at start-up, before the fork server imports all stages.
_SITECUSTOMIZE = """
import dataclasses, os, sys

if "TVMOPT_TEST_STAGE" in os.environ:
    def build(config, convert_dir, tune_dir, digest, out_dir, progress):
        from tvmopt.stages.result import StageResult
        scope = {**globals(), **locals()}
        exec(os.environ["TVMOPT_TEST_STAGE"], scope)
        return scope.get("result")

    from tvmopt.stages.registry import STAGES
    own = dataclasses.replace(STAGES["build"], function="sitecustomize:build", links=False)
    STAGES["build"] = own
"""


@pytest.fixture
def staged(tmp_path, monkeypatch):
    """Replace the build stage in child processes by given code."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)

    def set_body(body: str) -> None:
        monkeypatch.setenv("TVMOPT_TEST_STAGE", body)

    return set_body


@pytest.fixture
def launched(staged, tmp_path):
    """Launch a stage with the given code as body; its files are in ``tmp_path``."""
    from tvmopt.stages.launch import launch

    (tmp_path / "out").mkdir()

    def run(body: str, progress=lambda done, total, text: None, stage="build"):
        staged(body)
        return launch(
            stage,
            {"name": "m", "target": {}},
            {"convert": Path("convert")},
            tmp_path / "out",
            tmp_path / "log.txt",
            progress,
            threads=3,
            digest="d5",
        )

    return run
