"""Networks for audio: they are valid, and ONNX Runtime runs them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from benchmarks.audio_models import INPUT, MODELS, main


@pytest.mark.parametrize("name", MODELS)
def test_a_network_runs(name: str) -> None:
    session = ort.InferenceSession(MODELS[name]().SerializeToString())
    [given], [made] = session.get_inputs(), session.get_outputs()
    x = np.random.default_rng(0).standard_normal(given.shape, np.float32)
    [got] = session.run(None, {INPUT: x})
    assert list(got.shape) == made.shape and np.isfinite(got).all() and np.ptp(got) > 0


def test_all_files_are_written(tmp_path: Path) -> None:
    assert main([str(tmp_path / "new")]) == 0
    files = {file.stem: onnx.load(file) for file in (tmp_path / "new").iterdir()}
    assert files.keys() == MODELS.keys()
    assert all(files[name].graph.name == name for name in MODELS)
