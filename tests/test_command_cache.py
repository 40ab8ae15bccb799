"""The folder that the stages of one command share, and nobody else."""

from __future__ import annotations

import os

from tvmopt import command_cache

_NAME = "TVMOPT_COMMAND_CACHE"


def test_there_is_a_folder_within_a_command_only(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv(_NAME, raising=False)
    assert command_cache.folder("objects") is None
    with command_cache.shared_in(tmp_path):
        folder = command_cache.folder("objects")
        assert folder is not None and folder.is_dir() and tmp_path in folder.parents
        assert command_cache.folder("objects") == folder
        assert command_cache.folder("schedules") != folder
    assert command_cache.folder("objects") is None


def test_a_command_within_a_command_has_another_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv(_NAME, raising=False)
    with command_cache.shared_in(tmp_path / "outer"):
        outer = os.environ[_NAME]
        with command_cache.shared_in(tmp_path / "inner"):
            assert os.environ[_NAME] != outer
        assert os.environ[_NAME] == outer
