"""PyTorch models: programs of torch.export, pickles, tables and arrays."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from tests.exporters.saved import export_files
from tvmopt.errors import ConfigError
from tvmopt.exporters.source import describe

torch = pytest.importorskip("torch", reason="the extra pytorch is not installed")
pytest.importorskip("onnxscript", reason="the extra pytorch is not installed")


def _saved(folder, model, example):
    rows = torch.export.Dim.AUTO
    program = torch.export.export(model, (example,), dynamic_shapes=({0: rows},))
    torch.export.save(program, folder / "model.pt2")
    return describe("model.pt2", _flavors("model.pt2", "pt2"), None, trust=False)


def _flavors(file, kind):
    return {"pytorch": {"model_data": file, "serialization_format": kind}}


def test_a_program_needs_neither_trust_nor_signature(tmp_path):
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten())
    rows = np.random.default_rng(0).normal(size=(7, 1, 5, 5)).astype("float32")
    source = _saved(tmp_path, model.eval(), torch.from_numpy(rows))
    found = export_files(tmp_path, tmp_path, source, rows)
    with torch.no_grad():
        want = model(torch.from_numpy(rows[:3])).numpy()
    np.testing.assert_allclose(found.run(rows[:3]), want, atol=1e-5)
    assert found.model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "rows"


def test_a_pickle_in_the_place_of_tensors_is_not_read(tmp_path):
    class Harmful:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    import zipfile

    model = torch.nn.Linear(2, 2)
    source = _saved(tmp_path, model, torch.zeros(3, 2))
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        members = {one: archive.read(one) for one in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "model.pt2", "w") as archive:
        for name, content in members.items():
            is_pickle = "sample_inputs" in name and name.endswith(".pt")
            archive.writestr(name, pickle.dumps(Harmful()) if is_pickle else content)
    try:
        export_files(tmp_path, tmp_path, source, np.zeros((4, 2), "float32"))
    except Exception as error:  # refused, or read without the pickle
        assert "torch.export.load" in str(error)
    assert not (tmp_path / "ran").exists()


def test_a_pickled_module_needs_trust(tmp_path):
    source = describe(
        "models:/m/1", _flavors("model.pth", "pickle"),
        {"inputs": '[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 2]}}]'},
        trust=False,
    )  # fmt: skip
    (tmp_path / "model.pth").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"must be trusted.*serialization_format='pt2'"):
        export_files(tmp_path, tmp_path, source, np.zeros((4, 2), "float32"))
