"""Fixtures: a real child process whose build stage runs the code of a test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Python imports this file at start-up, before the fork server imports all stages. The code of the
# test is read when the stage runs, so that all tests have one environment and share the server.
_SITECUSTOMIZE = """
import dataclasses, os, sys

if "TVMOPT_TEST_STAGE" in os.environ:
    from pathlib import Path

    def build(config, convert_dir, tune_dir, digest, out_dir, progress):
        from tvmopt.stages.result import StageResult
        scope = {**globals(), **locals()}
        exec(Path(os.environ["TVMOPT_TEST_STAGE"]).read_text(), scope)
        return scope.get("result")

    from tvmopt.stages.registry import STAGES
    own = dataclasses.replace(STAGES["build"], function="sitecustomize:build", links=False)
    STAGES["build"] = own
"""


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """Return a folder whose ``sitecustomize`` replaces the build stage."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    return folder


@pytest.fixture
def staged(site, monkeypatch):
    """Replace the build stage in child processes by given code."""
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("TVMOPT_TEST_STAGE", str(site / "stage.txt"))
    return (site / "stage.txt").write_text


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
