"""Run a stage as an MLflow run, or reuse the finished run with the same digest."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import yaml
from mlflow import MlflowClient
from mlflow.entities import Run

from tvmopt import host
from tvmopt.config import StageConfig
from tvmopt.digest import code_digest
from tvmopt.errors import ArtifactError, EnvironmentSetupError
from tvmopt.stages.launch import UNLIMITED, launch
from tvmopt.stages.registry import STAGES
from tvmopt.stages.result import StageResult
from tvmopt.stages.tune_files import DATABASE_DIR, KILLED_STAGE
from tvmopt.stages.watch import Allowance
from tvmopt.tracking.store.artifacts import write_manifest
from tvmopt.tracking.store.console import StageBar, say
from tvmopt.tracking.store.exclusive import turn
from tvmopt.tracking.store.runs import log_dataset, log_metrics, log_series, log_tags, open_run
from tvmopt.tracking.store.trust import (
    checked_artifacts,
    experiments_to_search,
    is_own,
    keep_private,
    sign,
)

LOG_FILE = "log.txt"
# Bytes that a stage writes at least, and how many times the size of its input files.
_LEAST_FREE, _FREE_TIMES = 100_000_000, 4


@dataclasses.dataclass(frozen=True)
class Session:
    """Context of all stages of one command.

    Attributes:
        client: Client of the tracking store.
        experiment: Id of the experiment that new runs go to.
        run_id: The command's own run; stage runs are its children.
        params: Parameters of the command, repeated on every stage run.
        use_cache: Whether a finished stage of the same digest is linked instead of done again.
        work_dir: Folder for temporary files, removed at the end of the command.
        threads: Threads of TVM's pool in child processes.
        allow: Gives what the next stage may use; may raise when nothing may begin any more.
        takes_turns: Whether a stage that measures waits for other processes' stages, and they for
            it.
        quiet: Whether stages end without a line on the terminal.
    """

    client: MlflowClient
    experiment: str
    run_id: str
    params: Mapping[str, object]
    use_cache: bool
    work_dir: Path
    threads: int
    allow: Callable[[], Allowance] = lambda: UNLIMITED
    takes_turns: bool = False
    quiet: bool = False

    def say(self, text: str) -> None:
        """Print one line, unless this command is quiet about its stages."""
        if not self.quiet:
            say(text)


@dataclasses.dataclass(frozen=True)
class StageOutput:
    """Result of a finished stage.

    Attributes:
        stage: Its name, with its label.
        digest: Its identity.
        run_id: The run that did it.
        folder: Its artifacts: a private copy that was checked, or what the stage wrote.
        metrics: Its metrics.
        cached: Whether it was found, not done.
        busy_s: Wall time of its process, and of waiting for its turn; 0 when it was found.
    """

    stage: str
    digest: str
    run_id: str
    folder: Path
    metrics: dict[str, float]
    cached: bool
    busy_s: float = 0.0

    @classmethod
    def of_run(cls, stage: str, run: Run, folder: Path) -> StageOutput:
        """Return the output of a finished run, with artifacts in ``folder``."""
        digest = run.data.tags["tvmopt.digest"]
        return cls(stage, digest, run.info.run_id, folder, dict(run.data.metrics), cached=True)


@dataclasses.dataclass(frozen=True)
class Planned:
    """A stage that is about to be reused or run.

    Attributes:
        stage: Name of the stage; see :data:`tvmopt.stages.registry.STAGES`.
        name: Its name in this pipeline: the stage, with a label where it occurs twice.
        config: What the stage is asked.
        digest: Its identity.
        input_digests: Digests of the inputs, by role.
        inputs: Files and folders to read, by role.
    """

    stage: str
    name: str
    config: StageConfig
    digest: str
    input_digests: Mapping[str, str]
    inputs: Mapping[str, Path]


def run_stage(
    session: Session,
    planned: Planned,
    *,
    own: bool = False,
    tags: Mapping[str, str] | None = None,
) -> StageOutput:
    """Link the finished run of the stage, or run the stage in a new one.

    Args:
        session: What the command's stages share.
        planned: The stage.
        own: Whether the command's own run is the run of this stage; else it is a child of it.
        tags: Tags of the stage's run, from its beginning.
    """
    found = find_finished(session, planned) if session.use_cache else None
    if found is None:
        return _do(session, planned, own, tags or {})
    links = {f"tvmopt.stage_run.{planned.name}": found.run_id}
    if own:
        links |= {"tvmopt.cached_from": found.run_id, "tvmopt.linked_digest": planned.digest}
        links |= tags or {}
    log_tags(session.client, session.run_id, links)
    if own:
        log_metrics(session.client, session.run_id, found.metrics)
    session.say(f"{planned.name:<18} reused   run {found.run_id[:8]}, digest {planned.digest[:12]}")
    return found


def find_finished(session: Session, planned: Planned) -> StageOutput | None:
    """Return the newest finished run of the stage whose files are intact; None for none."""
    query = (
        f"attributes.status = 'FINISHED' and tags.`tvmopt.digest` = '{planned.digest}' "
        f"and tags.`tvmopt.stage` = '{planned.stage}'"
    )
    client = session.client
    experiments = experiments_to_search(client, session.experiment)
    runs = client.search_runs(experiments, query, order_by=["attributes.start_time DESC"])
    for run in filter(is_own, runs):
        try:
            folder = checked_artifacts(client, run, planned.stage, session.work_dir)
        except ArtifactError as error:
            say(f"{planned.stage:<18} {error}: doing it again")
        else:
            return StageOutput.of_run(planned.name, run, folder)
    return None


def _do(session: Session, planned: Planned, own: bool, more: Mapping[str, str]) -> StageOutput:
    client = session.client
    stage, name, inputs = planned.stage, planned.name, planned.inputs
    measures = STAGES[stage].measures(planned.config)
    tags = {
        **more,
        "tvmopt.stage": stage,
        "tvmopt.digest": planned.digest,
        "tvmopt.code": code_digest(),
        "tvmopt.fingerprint": host.fingerprint(),
        **{f"tvmopt.input.{role}": str(path) for role, path in inputs.items() if path.is_file()},
    }
    with _stage_run(session, name, tags, own) as run_id:
        log_tags(client, session.run_id, {f"tvmopt.stage_run.{name}": run_id})
        if "data" in inputs:
            log_dataset(client, run_id, inputs["data"], planned.input_digests["data"], stage)
        out_dir = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=session.work_dir))
        log = session.work_dir / f"{out_dir.name}.log"
        waits: AbstractContextManager[None] = nullcontext()
        if session.takes_turns:
            waits = turn(measures, session.say)
        _check_space(session.work_dir, stage, inputs)
        asked = time.perf_counter()
        try:
            with waits, StageBar(name) as bar:
                start = time.perf_counter()
                result = launch(
                    stage,
                    planned.config.to_dict(),
                    inputs,
                    out_dir,
                    log,
                    bar,
                    threads=session.threads,
                    digest=planned.digest,
                    allowance=session.allow(),
                )
                ended = time.perf_counter()
        except BaseException:  # raised again: the log of a failure is what explains it
            _log_failed(session, run_id, planned, out_dir, log)
            raise
        folder = _log(session, run_id, planned, result, out_dir, log)
    session.say(f"{name:<18} {ended - start:6.1f} s {'; '.join(result.changed)}")
    return StageOutput(
        name,
        planned.digest,
        run_id,
        folder,
        result.all_metrics,
        cached=False,
        busy_s=ended - asked,
    )


def _log_failed(session: Session, run_id: str, planned: Planned, out_dir: Path, log: Path) -> None:
    """Log what a stage that failed or was killed leaves: its log, and a tuning database.

    The run gets another stage, which is signed, so that nobody takes it for a finished one.
    """
    left = Path(tempfile.mkdtemp(prefix="failed-", dir=session.work_dir))
    if log.exists():
        shutil.copyfile(log, left / LOG_FILE)
    if (out_dir / DATABASE_DIR).is_dir():
        shutil.copytree(out_dir / DATABASE_DIR, left / DATABASE_DIR)
        write_manifest(left)
        sign(left, KILLED_STAGE, planned.digest)
        log_tags(session.client, run_id, {"tvmopt.stage": KILLED_STAGE})
    session.client.log_artifacts(run_id, str(left))
    shutil.rmtree(left)


def _check_space(folder: Path, stage: str, inputs: Mapping[str, Path]) -> None:
    """Raise when there is less room than a stage is likely to need for what it makes of inputs."""
    given = sum(path.stat().st_size for path in inputs.values() if path.is_file())
    needed, free = _LEAST_FREE + _FREE_TIMES * given, shutil.disk_usage(folder).free
    if free < needed:
        raise EnvironmentSetupError(
            f"{stage} needs about {needed / 1e6:.0f} MB of free space in '{folder.parent}', but "
            f"there are {free / 1e6:.0f} MB; free space, or set TMPDIR to a folder with more"
        )


@contextmanager
def _stage_run(session: Session, name: str, tags: Mapping[str, str], own: bool) -> Iterator[str]:
    if own:
        log_tags(session.client, session.run_id, tags)
        yield session.run_id
        return
    with open_run(
        session.client, session.experiment, name, session.params, tags, parent=session.run_id
    ) as run_id:
        yield run_id


def _log(
    session: Session,
    run_id: str,
    planned: Planned,
    result: StageResult,
    out_dir: Path,
    log: Path,
) -> Path:
    client = session.client
    (out_dir / "config.yaml").write_text(yaml.safe_dump(planned.config.to_dict(), sort_keys=True))
    shutil.copyfile(log, out_dir / LOG_FILE)
    write_manifest(out_dir)
    sign(out_dir, planned.stage, planned.digest)
    client.log_artifacts(run_id, str(out_dir))
    log_metrics(client, run_id, result.metrics)
    log_series(client, run_id, result.series)
    note = "\n".join(f"- {line}" for line in result.changed)
    log_tags(client, run_id, {**result.tags, "mlflow.note.content": note})
    return keep_private(out_dir, session.work_dir, planned.stage, run_id)
