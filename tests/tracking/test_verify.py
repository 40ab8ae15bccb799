"""Tampering with a registered model is detected."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import mlflow
import numpy as np
import pytest
import yaml

from tvmopt.errors import ArtifactError, ConfigError, PromotionRefusedError
from tvmopt.runtime import ModelMetadata
from tvmopt.runtime.metadata import GOLDEN_FILE, LIBRARY_FILE, METADATA_FILE
from tvmopt.tracking import flavor
from tvmopt.tracking.flavor.verify import generic_sha256, read_mlmodel, verify_model
from tvmopt.tracking.registry import pull
from tvmopt.tracking.registry import versions as registry
from tvmopt.tracking.registry.promotion import promote_version
from tvmopt.tracking.serving.serve import serve

from .registered_model import Registered, in_store, register_bundle


@pytest.fixture(scope="module")
def shared(store_uri, tmp_path_factory, conv_bundle) -> tuple[Registered, Path]:
    """Return the single-input bundle, registered once, and a copy of its files."""
    folder = tmp_path_factory.mktemp("shared")
    with in_store(store_uri, folder) as client:
        made = register_bundle(client, folder, conv_bundle)
    shutil.copytree(made.saved, folder / "copy", symlinks=True)
    return made, folder / "copy"


def _restore(folder: Path, copy: Path) -> None:
    """Undo what a test changed below ``folder``."""

    def entries(root: Path) -> dict[Path, tuple[int, int, int]]:
        found = {path: path.lstat() for path in root.rglob("*")}
        return {
            path.relative_to(root): (s.st_mode, s.st_size, s.st_mtime_ns)
            if stat.S_ISREG(s.st_mode) else (s.st_mode, 0, 0)
            for path, s in found.items()
        }  # fmt: skip

    def remove(path: Path) -> None:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    wanted, there = entries(copy), entries(folder)
    for name in sorted(there):
        if there[name] != wanted.get(name) and os.path.lexists(folder / name):
            remove(folder / name)
    for name in sorted(wanted):
        if not os.path.lexists(folder / name):
            if (copy / name).is_dir():
                shutil.copytree(copy / name, folder / name)
            else:
                shutil.copy2(copy / name, folder / name)
    assert entries(folder) == wanted


@pytest.fixture
def foreign(two_input_bundle, registered):
    """Replace the registered library and its metadata by others."""

    def put(adjust_mlmodel: bool) -> None:
        for name in (LIBRARY_FILE, METADATA_FILE, GOLDEN_FILE):
            shutil.copyfile(two_input_bundle / name, registered.saved / "compiled" / name)
        if adjust_mlmodel:
            model = ModelMetadata.read(two_input_bundle)
            registered.edit_mlmodel(
                metadata_sha256=registered.edit_metadata(),
                library_sha256=model.library_sha256,
                golden_sha256=model.golden_sha256,
            )

    return put


def _refusals(registered: Registered, folder: Path) -> list[str]:
    """Return the errors of pull, serve, load_model, pyfunc and promotion; each must be one line."""
    output = folder / "pulled"
    calls = [
        lambda: pull.pull(registered.name, "1", str(output)),
        lambda: serve(registered.name, "1", port=0),
        lambda: flavor.load_model(registered.uri),
        lambda: mlflow.pyfunc.load_model(registered.uri),
        lambda: promote_version(
            registered.client, registered.name, "1", data=None, max_accuracy_drop=1.0,
            work_dir=folder,
        ),
    ]  # fmt: skip
    said = []
    for call in calls:
        with pytest.raises((ArtifactError, PromotionRefusedError)) as caught:
            call()
        said.append(str(caught.value))
    assert not output.exists()
    assert not [text for text in said if "\n" in text]
    return said


@pytest.mark.usefixtures("never_opened")
class TestNothingIsExchangedUnseen:
    @pytest.fixture
    def registered(self, store_uri, shared, tmp_path) -> Iterator[Registered]:
        """Return the shared model; whatever a test changes is undone."""
        made, copy = shared
        with in_store(store_uri, tmp_path):
            yield made
        _restore(made.saved, copy)

    def test_library_with_its_metadata(self, registered, foreign, tmp_path):
        foreign(adjust_mlmodel=False)
        for text in _refusals(registered, tmp_path):
            assert "model.json must have sha256" in text

    def test_library_with_its_metadata_and_mlmodel(self, registered, foreign, tmp_path):
        foreign(adjust_mlmodel=True)
        for text in _refusals(registered, tmp_path):
            assert "the version is registered with library_sha256" in text

    def test_tolerance(self, registered, tmp_path):
        registered.edit_metadata(tolerance=9.001)
        for text in _refusals(registered, tmp_path):
            assert "model.json must have sha256" in text

    @pytest.mark.slow  # as the library with MLmodel
    def test_tolerance_and_mlmodel(self, registered, tmp_path):
        registered.edit_mlmodel(metadata_sha256=registered.edit_metadata(tolerance=9.001))
        for text in _refusals(registered, tmp_path):
            assert "the version is registered with metadata_sha256" in text

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("name", [LIBRARY_FILE, GOLDEN_FILE])
    def test_one_file(self, registered, name, tmp_path):
        (registered.saved / "compiled" / name).write_bytes(b"other")
        for text in _refusals(registered, tmp_path):
            assert f"{name} must have sha256" in text

    def test_code(self, registered, tmp_path):
        path = registered.saved / "code" / "tvmopt" / "versions.py"
        path.write_text(path.read_text() + "\n# changed\n")
        for text in _refusals(registered, tmp_path):
            assert "the folder of code must have sha256" in text

    @pytest.mark.slow  # as code that is changed
    def test_code_added(self, registered, tmp_path):
        (registered.saved / "code" / "sitecustomize.py").write_text("")
        for text in _refusals(registered, tmp_path):
            assert "the folder of code must have sha256" in text

    @pytest.mark.parametrize("kind", ["link to a folder", "link to a file", "pipe", "root"])
    def test_code_elsewhere(self, registered, tmp_path, kind):
        code, other = registered.saved / "code", tmp_path / "other"
        if kind == "root":
            code.rename(other)
            code.symlink_to(other)
        elif kind == "pipe":
            os.mkfifo(code / "evil.py")
        elif kind == "link to a file":
            (code / "evil.py").symlink_to("/etc/hostname")
        else:
            other.mkdir()
            (code / "numpyx").symlink_to(other)
        for read in (flavor.load_model, mlflow.pyfunc.load_model):
            with pytest.raises(ArtifactError, match="must hold files and folders alone, but '"):
                read(registered.uri)

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("name", ["versions.cpython-311.pyc", "__init__.py"])
    @pytest.mark.parametrize("where", [".", "tvmopt"])
    def test_compiled_code(self, registered, tmp_path, name, where):
        cache = registered.saved / "code" / where / "__pycache__"
        cache.unlink()
        cache.mkdir()
        (cache / name).write_bytes(b"x")
        for text in _refusals(registered, tmp_path):
            assert "must hold no compiled code, but '" in text
            assert "delete the folders __pycache__" in text

    @pytest.mark.parametrize(
        "change",
        [
            {"loader_module": "os"}, {"data": "../other"}, {"code": "/etc"}, {"code": "compiled"},
            {"config": {"require_finite": True}}, {"env": {"conda": "other.yaml"}}, {"new": 1},
        ],
    )  # fmt: skip
    def test_flavor_of_generic_tools(self, registered, change):
        path = registered.saved / "MLmodel"
        data = yaml.safe_load(path.read_text())
        data["flavors"]["python_function"].update(change)
        path.write_text(yaml.safe_dump(data))
        with pytest.raises(ArtifactError, match="what MLflow's generic tools read"):
            flavor.load_model(registered.uri)

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("key", ["signature", "saved_input_example_info"])
    def test_signature_and_example(self, registered, key, tmp_path):
        path = registered.saved / "MLmodel"
        data = yaml.safe_load(path.read_text())
        assert data[key]
        path.write_text(yaml.safe_dump({**data, key: None}))
        for text in _refusals(registered, tmp_path):
            assert "what MLflow's generic tools read" in text

    @pytest.mark.parametrize(
        "name", ["requirements.txt", "conda.yaml", "python_env.yaml", "input_example.json"]
    )
    @pytest.mark.parametrize("kind", ["changed", "missing", "link", "pipe"])
    def test_files_of_generic_tools(self, registered, name, kind, tmp_path):
        path = registered.saved / name
        text = path.read_text()
        path.unlink()
        if kind == "changed":
            path.write_text(text + "\n--index-url http://evil\n")
        elif kind == "link":
            (tmp_path / name).write_text(text)
            path.symlink_to(tmp_path / name)
        elif kind == "pipe":
            os.mkfifo(path)
        with pytest.raises(ArtifactError, match=r"MLflow's generic tools read|a regular file, but"):
            flavor.load_model(registered.uri)

    @pytest.mark.slow  # as the library with MLmodel
    def test_generic_hash_and_mlmodel(self, registered, tmp_path):
        (registered.saved / "requirements.txt").write_text("evil")
        mlmodel = read_mlmodel(registered.saved)
        registered.edit_mlmodel(generic_sha256=generic_sha256(registered.saved, mlmodel))
        for text in _refusals(registered, tmp_path):
            assert "the version is registered with generic_sha256" in text

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("data", ["../../elsewhere", "/etc", 7])
    def test_folder_elsewhere(self, registered, data, tmp_path):
        registered.edit_mlmodel(data=data)
        with pytest.raises(ArtifactError, match="data"):
            pull.pull(registered.name, "1", str(tmp_path / "pulled"))

    @pytest.mark.parametrize(
        "content",
        [b"", b"{", b"[" * 100_000, b"flavors: 1", b"a: &a [*a]", b"\xff\xfe", b"x" * 2**21],
    )
    def test_damaged_mlmodel_is_one_line(self, registered, content, tmp_path):
        (registered.saved / "MLmodel").write_bytes(content)
        with pytest.raises(ArtifactError, match="MLmodel is missing or damaged") as caught:
            verify_model(registered.saved)
        assert "\n" not in str(caught.value)


def test_intact_model_passes_everywhere(registered, tmp_path):
    version = registered.client.get_model_version(registered.name, "1")
    assert {"sha256", "metadata_sha256", "code_sha256", "generic_sha256"} <= set(version.tags)
    assert pull.pull(registered.name, "1", str(tmp_path / "pulled")).is_dir()
    model = flavor.load_model(registered.uri)
    x = np.zeros(model.metadata.inputs[0].shape, np.float32)
    np.testing.assert_array_equal(mlflow.pyfunc.load_model(registered.uri).predict(x), model(x)[0])


_FRESH = """
import sys
import mlflow
for name in [n for n in sys.modules if n.split(".")[0] == "tvmopt"]:  # MLflow's plugin
    del sys.modules[name]
mlflow.pyfunc.load_model(sys.argv[1])
import tvmopt
print(tvmopt.__file__)
"""


@pytest.mark.slow  # two imports of MLflow
def test_code_of_the_model_is_imported_twice_and_leaves_no_caches(registered, tmp_path):
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env |= {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", _FRESH, str(registered.saved)], env=env, cwd=tmp_path, text=True,
            capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert Path(done.stdout.strip()).is_relative_to(registered.saved / "code")
    assert [p for p in registered.saved.rglob("__pycache__") if p.is_dir()] == []
    flavor.load_model(registered.uri)


def test_a_bundle_that_contradicts_its_metadata_is_not_saved(conv_bundle, tmp_path):
    bundle = Path(shutil.copytree(conv_bundle, tmp_path / "bundle"))
    (bundle / LIBRARY_FILE).write_bytes(b"foreign")
    with pytest.raises(ArtifactError, match="must have sha256"):
        flavor.save_model(bundle, tmp_path / "saved")


def test_registering_again_keeps_the_hashes(registered, conv_bundle):
    name = registered.name
    run = registered.client.get_model_version(name, "1").run_id
    lie = {"sha256": "0" * 64, "note": "new"}
    again = registry.register(registered.client, name, conv_bundle, run, lie)
    tags = registered.client.get_model_version(name, again.version).tags
    assert tags["note"] == "new"
    assert tags["sha256"] == ModelMetadata.read(conv_bundle).library_sha256


@pytest.mark.sample(1)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_require_finite_refuses_inputs_and_outputs(registered, value):
    model = flavor.load_model(registered.uri)
    spec = model.metadata.inputs[0]
    x = np.zeros(spec.shape, np.float32)
    x.flat[3] = value
    strict = mlflow.pyfunc.load_model(registered.uri, model_config={"require_finite": True})
    with pytest.raises(ConfigError, match=r"must be finite .* 1 of \d+ values are NaN or inf"):
        strict.predict(x)
    with pytest.raises(ConfigError, match="input 'x' must be finite"):
        strict.predict({"x": x})
    huge = np.full(spec.shape, 3e38, np.float32)
    with pytest.raises(ConfigError, match="output 'y' must be finite"):
        strict.predict(huge)
    mlflow.pyfunc.load_model(registered.uri).predict(x)  # by default every request is answered
