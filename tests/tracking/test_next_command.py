"""The printed next command works where it is typed: in a clone, or beside an installed wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

import tvmopt
from tvmopt.tracking.store.next_command import next_command


@pytest.mark.parametrize(
    ("has_project", "in_root", "command"),
    [
        (True, True, "mlflow run . -e pull --env-manager local -P 'name=a b' -P version=2"),
        (True, False, "tvmopt pull --name 'a b' --version 2"),
        (False, True, "tvmopt pull --name 'a b' --version 2"),
    ],
)
def test_next_command(has_project, in_root, command, tmp_path, monkeypatch):
    monkeypatch.setattr(tvmopt, "__file__", str(tmp_path / "tvmopt" / "__init__.py"))
    (tmp_path / "elsewhere").mkdir()
    if has_project:
        Path(tmp_path / "MLproject").touch()
    monkeypatch.chdir(tmp_path if in_root else tmp_path / "elsewhere")
    assert next_command("pull", name="a b", version="2", output="") == command
