"""Promotion requires better results on held-out data; a refusal states the reason."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE

from tvmopt.errors import ConfigError, PromotionRefusedError, StageFailedError
from tvmopt.tracking.registry import promotion
from tvmopt.tracking.registry import versions as registry
from tvmopt.tracking.registry.promote import promote
from tvmopt.tracking.registry.promotion import promote_if_better, promote_version
from tvmopt.tracking.store.artifacts import local_artifacts


def _bundle(example):
    client = example.client()
    version = client.get_model_version(name="digits-cnn", version="1")
    folder = local_artifacts(client, version.tags["build_run"], example.folder)
    return folder / "bundle", version


@pytest.fixture
def wrong_reference(use_example, tmp_path):
    """Register a version of another model whose float reference disagrees with it."""
    import onnx

    client = use_example.client()
    bundle, version = _bundle(use_example)
    source = local_artifacts(client, version.tags["convert_run"], tmp_path)
    experiment = client.create_experiment(f"wrong-{tmp_path.name}", tmp_path.as_uri())
    run = client.create_run(experiment)
    copy = shutil.copytree(source, tmp_path / "converted")
    model = onnx.load_model(str(copy / "reference.onnx"))
    weight = max(model.graph.initializer, key=lambda t: np.prod(t.dims))
    noise = np.random.default_rng(0).standard_normal(tuple(weight.dims)).astype(np.float32)
    weight.CopyFrom(onnx.numpy_helper.from_array(noise, weight.name))
    onnx.save_model(model, str(copy / "reference.onnx"))
    from tvmopt.tracking.store.artifacts import write_manifest

    write_manifest(copy)
    client.log_artifacts(run.info.run_id, str(copy))
    tags = {"convert_run": run.info.run_id}
    name = f"wrong-{tmp_path.name}"
    return client, registry.register(client, name, bundle, run.info.run_id, tags)


def test_version_that_differs_from_its_float_model_is_refused(wrong_reference, tmp_path):
    client, registered = wrong_reference
    with pytest.raises(
        PromotionRefusedError, match=r"accuracy drop must be at most 0\.01"
    ) as refused:
        promote_version(
            client, registered.name, "1", data=None, max_accuracy_drop=0.01, work_dir=tmp_path
        )
    assert refused.value.drop > 0.01
    assert "champion" not in client.get_registered_model(registered.name).aliases


def test_a_registry_that_does_not_answer_has_no_missing_champion(use_example):
    client = use_example.client()
    assert promotion.champion_of(client, "no-such-model") is None
    assert promotion.champion_of(client, "digits-cnn") is not None

    class Away:
        def get_model_version_by_alias(self, name, alias):
            raise MlflowException("the database is locked", TEMPORARILY_UNAVAILABLE)

    with pytest.raises(MlflowException, match="locked"):
        promotion.champion_of(Away(), "digits-cnn")


def test_missing_reference_is_refused(use_example, tmp_path):
    client = use_example.client()
    bundle, version = _bundle(use_example)
    tags = {"convert_run": "0" * 32}
    made = registry.register(client, "no-reference", bundle, version.tags["build_run"], tags)
    with pytest.raises(PromotionRefusedError, match=r"its convert run '0{32}' is gone") as refused:
        promote_version(
            client, made.name, made.version, data=None, max_accuracy_drop=1, work_dir=tmp_path
        )
    assert refused.value.drop == 0  # the accuracy is not why


@pytest.mark.slow  # tests/stages/test_launch.py kills a stage
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kills", "kind", "refused"),
    [(1, "killed", ""), (2, "killed", "was ended by SIGKILL"), (1, "crash", "was ended by SIG")],
)
def test_a_killed_check_is_done_once_more(kills, kind, refused, use_example, monkeypatch, capsys):
    """One kill is no evidence against the model; a crash or a second kill is."""
    real, calls = promotion.heldout_accuracy, []

    def killed(*args):
        calls.append(args)
        if len(calls) <= kills:
            name = "SIGKILL" if kind == "killed" else "SIGSEGV"
            raise StageFailedError(f"the heldout process was ended by {name}", kind)
        return real(*args)

    monkeypatch.setattr(promotion, "heldout_accuracy", killed)
    if refused:
        with pytest.raises(PromotionRefusedError, match=refused):
            promote("digits-cnn", version="1")
    else:
        assert promote("digits-cnn", version="1").done
    assert len(calls) == (2 if kind == "killed" else 1)
    assert ("; once more" in capsys.readouterr().out) == (kind == "killed")


def test_promotion_uses_held_out_samples_only(use_example, root, tmp_path):
    data = root / "tvmopt/examples/digits_eval.npz"
    done = promote("digits-cnn", version="1", data=str(data))
    assert done.done
    assert "on 162 held-out samples" in done.words  # 30% of 540


def test_slower_version_of_the_same_model_does_not_replace_the_champion(use_example, tmp_path):
    client = use_example.client()
    bundle, version = _bundle(use_example)
    slower = tmp_path / "slower"
    shutil.copytree(bundle, slower)
    text = (slower / "model.json").read_text().replace(version.tags["digest"], "f" * 64)
    (slower / "model.json").write_text(text)
    tags = {k: v for k, v in version.tags.items() if k not in ("digest", "sha256")}
    tags["latency_ms_p50"] = "1e9"
    made = registry.register(client, "digits-cnn", slower, version.tags["build_run"], tags)
    result = promote_if_better(
        client, made, data=None, max_accuracy_drop=0.01, work_dir=tmp_path, evidence="none"
    )
    assert not result.done
    assert "version 1 stays champion" in result.words
    assert str(client.get_model_version_by_alias("digits-cnn", "champion").version) == "1"

    # A user may promote it, and the previous champion stays recorded.
    promote("digits-cnn", version=made.version)
    aliases = client.get_registered_model("digits-cnn").aliases
    assert (str(aliases["champion"]), str(aliases["previous-champion"])) == (made.version, "1")
    promote("digits-cnn", version="previous-champion")
    assert str(client.get_registered_model("digits-cnn").aliases["champion"]) == "1"


@pytest.mark.parametrize("alias", ["v1", "latest", "9lives", "a b"])
def test_reserved_alias_is_refused(alias):
    with pytest.raises(ConfigError, match="alias must start with a letter"):
        promote("digits-cnn", alias=alias)


def test_unknown_version_says_what_there_is(use_example):
    with pytest.raises(ConfigError, match=r"must be a version \(.*1.*\) or an alias"):
        promote("digits-cnn", version="999")


def test_registering_the_same_digest_gives_the_same_version(use_example):
    client = use_example.client()
    bundle, version = _bundle(use_example)
    again = registry.register(
        client, "digits-cnn", bundle, version.tags["build_run"], dict(version.tags)
    )
    assert (again.version, again.existed) == ("1", True)
