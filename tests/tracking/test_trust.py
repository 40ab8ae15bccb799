"""Runs of other users are not reused, even when their digests match."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow import MlflowClient

from tests.mlflow_runs import client_of
from tvmopt import host
from tvmopt.config import TuneConfig
from tvmopt.device.target import resolve_target
from tvmopt.digest import code_digest, sha256_text
from tvmopt.errors import ArtifactError, ConfigError, EnvironmentSetupError, LimitError
from tvmopt.stages.result import StageResult
from tvmopt.stages.tune_files import KILLED_STAGE
from tvmopt.tracking.search import finals
from tvmopt.tracking.store import artifacts, stage_run, trust
from tvmopt.tracking.store.artifacts import is_intact, write_manifest
from tvmopt.tracking.store.earlier import earlier_databases
from tvmopt.tracking.store.runs import user
from tvmopt.tracking.store.stage_run import Session

KEY = "k" * 32


@pytest.fixture
def place(store_uri, tmp_path, monkeypatch):
    """Return a session in a new experiment, and a function that makes finished runs."""
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    client = client_of(store_uri)
    experiment = client.create_experiment(f"own {tmp_path}", (tmp_path / "own").as_uri())
    foreign = client.create_experiment(f"foreign {tmp_path}", (tmp_path / "foreign").as_uri())
    run = client.create_run(experiment)
    digest = sha256_text(str(tmp_path))  # runs of two tests differ
    work = tmp_path / "work"
    work.mkdir()
    session = Session(client, experiment, run.info.run_id, {}, True, work, 1)

    def make(where: str = "own", name: str = "", stage: str = "build", files=("model.so",)) -> Path:
        tags = {
            "tvmopt.stage": stage, "tvmopt.digest": digest, "mlflow.user": name or user(),
            "tvmopt.fingerprint": host.fingerprint(), "tvmopt.code": code_digest(),
            "tvmopt.granularity": "subgraph",
        }  # fmt: skip
        made = client.create_run({"own": experiment, "foreign": foreign}[where], tags=tags)
        folder = Path(made.info.artifact_uri.removeprefix("file://"))
        for file in files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(file)
        write_manifest(folder)
        trust.sign(folder, stage, digest)
        client.set_terminated(made.info.run_id, "FINISHED")
        return folder

    make.session, make.digest = session, digest
    return make


def _found(place):
    planned = stage_run.Planned("build", "build", None, place.digest, {}, {})
    return stage_run.find_finished(place.session, planned)


def _run_of(folder: Path) -> str:
    return [p for p in folder.parts if len(p) == 32][-1]


def _exchange(folder: Path) -> None:
    """Replace a file and its manifest, as an attacker of the artifact store would."""
    (folder / "model.so").write_text("foreign")
    write_manifest(folder)


def test_own_runs_of_the_own_experiment_are_used(place):
    folder = place()
    found = _found(place)
    assert found.run_id == _run_of(folder)
    assert (found.folder / "model.so").read_text() == "model.so"


def test_files_exchanged_after_the_check_are_not_used(place):
    folder = place()
    found = _found(place)
    _exchange(folder)
    assert (found.folder / "model.so").read_text() == "model.so"
    assert found.folder.is_relative_to(place.session.work_dir)
    assert _found(place).folder == found.folder  # copied once


def test_files_written_in_place_after_the_check_are_not_used(place):
    folder = place()
    found = _found(place)
    with (folder / "model.so").open("r+") as file:  # the same inode
        file.write("foreign.")
    assert (found.folder / "model.so").read_text() == "model.so"


def test_files_exchanged_while_they_are_checked_are_not_used(place, monkeypatch):
    folder = place()
    check = trust.may_use

    def and_exchange(checked, run):
        said = check(checked, run)
        _exchange(folder)
        return said

    monkeypatch.setattr(trust, "may_use", and_exchange)
    assert (_found(place).folder / "model.so").read_text() == "model.so"


def test_what_a_stage_built_is_used_not_what_lies_in_the_store(place, monkeypatch):
    def build(stage, config, inputs, out_dir, log, *rest, **more):
        (out_dir / "model.so").write_text("built")
        log.touch()
        return StageResult({}, {}, [])

    def exchanged(client, run_id, folder, log=MlflowClient.log_artifacts):
        log(client, run_id, folder)
        uri = client.get_run(run_id).info.artifact_uri
        _exchange(Path(uri.removeprefix("file://")))

    monkeypatch.setattr(stage_run, "launch", build)
    monkeypatch.setattr(MlflowClient, "log_artifacts", exchanged)
    config = SimpleNamespace(to_dict=dict)
    planned = stage_run.Planned("build", "build", config, "digest", {}, {})
    built = stage_run.run_stage(place.session, planned)
    assert (built.folder / "model.so").read_text() == "built"
    again = finals.stage_output(place.session, built.run_id, "build")
    assert (again.folder / "model.so").read_text() == "built"


def test_the_last_round_checks_what_it_measures(place):
    folder = place()
    assert finals.stage_output(place.session, _run_of(folder), "build").folder.is_dir()
    damaged = place()
    (damaged / "model.so").write_text("damaged")
    record = SimpleNamespace(stages=dict.fromkeys(("convert", "build", "evaluate"), ""))
    record.stages = {stage: _run_of(folder) for stage in record.stages}
    assert finals.are_intact(place.session, record)
    record.stages["build"] = _run_of(damaged)
    assert not finals.are_intact(place.session, record)
    with pytest.raises(ArtifactError, match=r"run \w{8} has damaged artifacts"):
        finals.stage_output(place.session, _run_of(damaged), "build")


def test_only_regular_files_are_copied(place, tmp_path):
    folder = place(files=("model.so", "sub/a"))
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("/etc")
    (folder / "sub" / "file").symlink_to(folder / "model.so")
    copy = artifacts.local_artifacts(place.session.client, _run_of(folder), tmp_path)
    found = sorted(p.relative_to(copy).as_posix() for p in copy.rglob("*") if p.is_file())
    assert found == ["manifest.json", "model.so", "sub/a"]
    assert not [path for path in copy.rglob("*") if path.is_symlink() or path.is_fifo()]


def test_a_file_is_copied_where_no_block_can_be_shared(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError("cross-device link")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    data = os.urandom(3 * 2**20 + 1)
    (tmp_path / "a").write_bytes(data)
    artifacts._copy_file(tmp_path / "a", tmp_path / "b", len(data))
    assert (tmp_path / "b").read_bytes() == data


def test_a_copy_needs_space(place, monkeypatch):
    folder = place()
    with (folder / "huge").open("wb") as file:
        file.truncate(10**10)
    monkeypatch.setattr(shutil, "disk_usage", lambda at: SimpleNamespace(free=10**9))
    with pytest.raises(EnvironmentSetupError, match="needs 10100 MB of free space in") as caught:
        _found(place)
    assert "there are 1000 MB; free space, or set TMPDIR" in str(caught.value)


@pytest.mark.parametrize("foreign", [{"where": "foreign"}, {"name": "mallory"}])
def test_a_foreign_run_with_the_same_digest_is_not_used(place, foreign):
    place(**foreign)
    assert _found(place) is None


def test_a_foreign_database_is_not_used(place):
    files = ["database/meta.json"]
    place(where="foreign", stage="tune", files=files)
    place(name="mallory", stage="tune", files=files)
    assert earlier_databases(place.session, "subgraph") == []
    folder = place(stage="tune", files=files)
    [database] = earlier_databases(place.session, "subgraph")
    assert (database.name, database.parent.name) == ("database", _run_of(folder))
    (folder / files[0]).write_text("foreign")
    assert (database / "meta.json").read_text() == files[0]


@pytest.mark.parametrize("key", ["", "k" * 32], ids=["no key", "a key"])
def test_a_killed_tune_stage_leaves_its_records_to_the_next(place, monkeypatch, key):
    if key:
        monkeypatch.setenv(trust.VARIABLE, key)
    session = place.session

    def killed(stage, config, inputs, out_dir, log, *_, **__):
        log.write_text("measured\n")
        (out_dir / "database").mkdir()
        (out_dir / "database" / "meta.json").write_text("{}")
        (out_dir / "candidates").mkdir()
        (out_dir / "candidates" / "large.so").write_text("not kept")
        raise LimitError("the tune process was stopped: it may take 1 s", "timeout")

    monkeypatch.setattr(stage_run, "launch", killed)
    config = TuneConfig(resolve_target("host", 1).to_dict(), strategy="fast")
    planned = stage_run.Planned("tune", "tune", config, place.digest, {}, {})
    with pytest.raises(LimitError, match="it may take 1 s"):
        stage_run.run_stage(session, planned, tags={"tvmopt.granularity": "subgraph"})
    [database] = earlier_databases(session, "subgraph")
    assert [file.name for file in database.iterdir()] == ["meta.json"]
    kept = {file.name for file in database.parent.iterdir()}
    signature = {"manifest.sig"} if key else set()
    assert kept == {"database", "log.txt", "manifest.json"} | signature
    # It is no result of the stage, whatever status somebody gives its run.
    query = f"tags.`tvmopt.stage` = '{KILLED_STAGE}'"
    [run] = session.client.search_runs([session.experiment], query)
    assert run.info.status == "FAILED"
    session.client.set_terminated(run.info.run_id, "FINISHED")
    assert stage_run.find_finished(session, planned) is None
    session.client.set_tag(run.info.run_id, "tvmopt.stage", "tune")
    if key:
        assert stage_run.find_finished(session, planned) is None


class TestWithAKey:
    @pytest.fixture(autouse=True)
    def key(self, place, monkeypatch):
        """Set a key; runs made before have no signature."""
        self.unsigned = place()
        monkeypatch.setenv(trust.VARIABLE, KEY)

    def test_unsigned_runs_are_not_used(self, place, capsys):
        assert _found(place) is None
        assert "is not signed with our key: doing it again" in capsys.readouterr().out

    def test_signed_runs_of_a_team_are_used(self, place):
        folder = place(where="foreign", name="colleague")
        assert _found(place).run_id == _run_of(folder)

    def test_another_key_does_not_sign_for_us(self, place, monkeypatch):
        monkeypatch.setenv(trust.VARIABLE, "m" * 32)
        place()
        monkeypatch.setenv(trust.VARIABLE, KEY)
        assert _found(place) is None

    def test_changed_files_with_a_new_manifest_are_not_used(self, place):
        folder = place()
        (folder / "model.so").write_text("changed")
        write_manifest(folder)
        assert _found(place) is None

    def test_a_signature_is_for_one_stage_and_digest(self, place):
        folder = place(stage="tune")
        run = place.session.client.get_run(_run_of(folder))
        assert trust.may_use(folder, run)
        place.session.client.set_tag(run.info.run_id, "tvmopt.stage", "build")
        assert not trust.may_use(folder, place.session.client.get_run(run.info.run_id))


def test_a_short_key_is_refused_without_being_shown(monkeypatch):
    monkeypatch.setenv(trust.VARIABLE, "hunter2")
    with pytest.raises(ConfigError, match="must have at least 16 characters, but got 7") as caught:
        trust.cache_key()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("change", ["extra", "missing", "changed", "link", "outside", "broken"])
def test_a_folder_is_intact_with_exactly_its_files(tmp_path, change):
    folder, other = tmp_path / "run", tmp_path / "other"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a").write_text("a")
    other.write_text("a")
    write_manifest(folder)
    assert is_intact(folder)
    file, manifest = folder / "sub" / "a", folder / "manifest.json"
    if change == "extra":
        (folder / "b.so").write_text("b")
    elif change == "missing":
        file.unlink()
    elif change == "changed":
        file.write_text("b")
    elif change == "link":
        file.unlink()
        file.symlink_to(other)
    elif change == "outside":
        hashes = json.loads(manifest.read_text())
        manifest.write_text(json.dumps({"../other": hashes["sub/a"]}))
        file.unlink()
    else:
        manifest.write_text("[" * 100_000)
    assert not is_intact(folder)
