"""Models given by path, or as ONNX models logged or registered in MLflow."""

from __future__ import annotations

import mlflow
import numpy as np
import onnx
import pytest

from tvmopt.errors import ConfigError
from tvmopt.tracking.pipeline.request import name_of
from tvmopt.tracking.store.mlflow_store import experiment_id
from tvmopt.tracking.store.model_source import local_model


@pytest.fixture
def logged(use_example, conv_model):
    """Log the conv model with the flavor onnx, and register it."""
    client = use_example.client()
    # Not set_experiment(), which would persist into tests of other stores.
    with mlflow.start_run(experiment_id=experiment_id(client, "source")):
        info = mlflow.onnx.log_model(conv_model, name="net", registered_model_name="source-net")
    client.set_registered_model_alias("source-net", "newest", info.registered_model_version)
    return info


def _same(path, model) -> bool:
    got = onnx.load_model(str(path))
    return np.array_equal(
        onnx.numpy_helper.to_array(got.graph.initializer[0]),
        onnx.numpy_helper.to_array(model.graph.initializer[0]),
    )


def test_registered_by_version_and_alias_and_run(logged, conv_model, tmp_path):
    version = logged.registered_model_version
    for uri in (f"models:/source-net/{version}", "models:/source-net@newest", logged.model_uri):
        assert _same(local_model(uri, tmp_path), conv_model)
    run_uri = f"runs:/{logged.run_id}/net"
    assert _same(local_model(run_uri, tmp_path), conv_model)


def test_path_stays_a_path(tmp_path, conv_model):
    onnx.save_model(conv_model, str(tmp_path / "m.onnx"))
    assert local_model(str(tmp_path / "m.onnx"), tmp_path) == tmp_path / "m.onnx"


def test_missing_uri_is_one_clear_error(use_example, tmp_path):
    with pytest.raises(ConfigError, match=r"'models:/nobody/1' could not be fetched"):
        local_model("models:/nobody/1", tmp_path)


def test_model_without_onnx_flavor_is_refused(use_example, tmp_path):
    with pytest.raises(ConfigError, match=r"flavor 'onnx'.*python_function, tvmopt"):
        local_model("models:/digits-cnn@champion", tmp_path)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("/some/where/ResNet 18.onnx", "ResNet-18"),
        ("models:/face-net/3", "face-net-compiled"),
        ("models:/face-net@champion", "face-net-compiled"),
        ("runs:/0123456789abcdef/net", "net"),
        ("/x/.onnx", "onnx"),
    ],
)
def test_default_name(model, name):
    assert name_of(model) == name


@pytest.mark.slow
def test_main_takes_a_registered_onnx_model(logged, use_example):
    from tvmopt.workflow import main

    result = main("models:/source-net@newest", topk=3, threads=1, repeats=5)
    assert (result.name, result.champion) == ("source-net-compiled", True)
