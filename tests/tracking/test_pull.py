"""Pulling a model runs no code of it, and fills a folder as a whole or not at all."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tvmopt.errors import ArtifactError, ConfigError
from tvmopt.runtime import ModelMetadata
from tvmopt.runtime.metadata import METADATA_FILE
from tvmopt.tracking.registry import pull

_NAME = 'a\nimport pathlib; pathlib.Path("{}").write_text("ran")\n#'


def test_names_of_inputs_do_not_run_as_code(register, two_input_bundle, tmp_path, monkeypatch):
    marker = tmp_path / "marker"
    bundle = Path(shutil.copytree(two_input_bundle, tmp_path / "bundle"))
    data = json.loads((bundle / METADATA_FILE).read_text())
    data["inputs"][0]["name"] = _NAME.format(marker)
    data["inputs"][1]["name"] = "| a | <b>"
    (bundle / METADATA_FILE).write_text(json.dumps(data))
    # Reading a model rejects the name; here the model is already in the registry.
    with pytest.raises(ArtifactError, match="holds control characters"):
        ModelMetadata.read(bundle)
    monkeypatch.setattr("tvmopt.runtime.metadata.is_printable", lambda text: True)
    monkeypatch.setattr(pull, "_run_sample", lambda folder: "")
    registered = register(bundle)
    folder = pull.pull(registered.name, "1", str(tmp_path / "pulled"))
    subprocess.run([sys.executable, "-I", str(folder / "sample.py")], check=False)
    assert not marker.exists()
    assert str(marker) not in (folder / "sample.py").read_text()
    rows = [r for r in (folder / "README.md").read_text().splitlines() if r.startswith("| input")]
    assert len(rows) == 2
    assert "\\| a \\| \\<b\\>" in rows[1]


def test_two_pulls_into_one_folder(registered, tmp_path, monkeypatch):
    output = tmp_path / "pulled"

    def other_is_faster(bundle: Path) -> str:
        output.mkdir()
        (output / "theirs").touch()
        return ""

    monkeypatch.setattr(pull, "_run_sample", other_is_faster)
    with pytest.raises(ConfigError, match="another command has filled"):
        pull.pull(registered.name, "1", str(output))
    assert [path.name for path in output.iterdir()] == ["theirs"]
    assert not list(tmp_path.glob(".tvmopt-pull-*"))


def test_sample_that_does_not_end_is_one_line(conv_bundle, tmp_path, monkeypatch):
    (tmp_path / "sample.py").write_text("while True: pass")
    monkeypatch.setattr(pull, "_TIMEOUT_S", 1.0)
    with pytest.raises(ArtifactError, match=r"may take 1 s, and had not ended"):
        pull._run_sample(tmp_path)
