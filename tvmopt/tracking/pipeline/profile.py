"""Entry point profile: time every kernel of a registered model, and say where the time goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from tvmopt.choices import AUTO
from tvmopt.config import ProfileConfig
from tvmopt.device.gpus import GPUS
from tvmopt.device.target import TargetSpec
from tvmopt.digest import stage_digest
from tvmopt.errors import ArtifactError, ConfigError
from tvmopt.parameters.call import entry_point
from tvmopt.parameters.commands import ProfileCommand
from tvmopt.profile.findings import ProfileFindings, find
from tvmopt.profile.rows import ProfileRow
from tvmopt.stages.profile import (
    BASELINE,
    BASELINE_TABLE_FILE,
    MODEL,
    REPORT_FILE,
    TABLE_FILE,
    TRACE_FILE,
)
from tvmopt.tracking import flavor
from tvmopt.tracking.flavor.verify import SavedModel, verify_model
from tvmopt.tracking.registry.versions import check_name, find_version, versions
from tvmopt.tracking.report import profile_words
from tvmopt.tracking.report.profile_page import profile_page
from tvmopt.tracking.report.tables import as_text
from tvmopt.tracking.store import command
from tvmopt.tracking.store.allowance import stage_allowance
from tvmopt.tracking.store.console import say
from tvmopt.tracking.store.missing import is_missing
from tvmopt.tracking.store.mlflow_store import open_store
from tvmopt.tracking.store.runs import log_metrics, log_tags
from tvmopt.tracking.store.stage_run import Planned, Session, StageOutput, run_stage
from tvmopt.tracking.store.trust import checked_artifacts

NO_BASELINE = "none"
PAGE_FILE = "profile.html"
# Tags that a model and the float32 build beside it share.
_SAME = ("model_sha256", "input_shapes", "target", "threads")
_FLOAT = "float32"
_PARENT = "mlflow.parentRunId"


@entry_point(ProfileCommand)
def profile(asked: ProfileCommand) -> StageOutput:
    """Time every kernel of a registered model, and say where the time goes and why.

    The run gets ``profile.csv``, ``trace.json`` and ``profile.html``.

    Raises:
        ConfigError: There is no such version, or it is for a GPU or another machine.
        ArtifactError: The version, or a run that made it, is damaged or gone.
    """
    name = check_name(asked.version.name)
    allowance = stage_allowance(asked.limits.memory_limit, asked.limits.stage_timeout)
    client = open_store()
    version = find_version(client, name, asked.version.version)
    _check_machine(version)
    baseline = _baseline(client, version, asked.profile.baseline)
    with command.command(
        "profile", name, asked.values(), use_cache=False, allow=lambda: allowance,
        threads=int(version.tags.get("threads", "1")),
    ) as session:  # fmt: skip
        models = {MODEL: version} | ({BASELINE: baseline} if baseline is not None else {})
        inputs: dict[str, Path] = {}
        for label, one in models.items():
            inputs |= _inputs(session, label, one)
        config = ProfileConfig(asked.profile.calls)
        digests = {label: one.tags.get("digest", "") for label, one in models.items()}
        digest = stage_digest("profile", config.to_dict(), digests)
        planned = Planned("profile", "profile", config, digest, digests, inputs)
        done = run_stage(session, planned)
        _report(session, version, baseline, done)
        return done


def _check_machine(version: ModelVersion) -> None:
    """Refuse a version that this machine's CPU cannot run, by its tag; its files decide later."""
    target = version.tags.get("target", "")
    if target in GPUS:
        raise ConfigError(_refusal(version, f"the GPU {target}"))


def _refusal(version: ModelVersion, device: str, more: str = "") -> str:
    return (
        f"version must be of a model for this machine's CPU to be profiled, but version "
        f"{version.version} of {version.name!r} is for {device}{more}; profile a version for this "
        "CPU, or pull it and use the device's own profiler"
    )


def _baseline(client: MlflowClient, version: ModelVersion, which: str) -> ModelVersion | None:
    """Return the float32 version to set beside; None where there is none."""
    if which == NO_BASELINE:
        return None
    if which == AUTO:
        if version.tags.get("dtype", _FLOAT) == _FLOAT:
            return None
        return next((v for v in versions(client, version.name) if _is_sibling(v, version)), None)
    found = find_version(client, version.name, which)
    if not _is_sibling(found, version):
        raise ConfigError(
            f"baseline must be a float32 version of the same ONNX model, input shapes, target and "
            f"threads as version {version.version}, but version {found.version} is not; build one "
            "with dtype=float32, or give baseline=none"
        )
    return found


def _is_sibling(one: ModelVersion, other: ModelVersion) -> bool:
    same = all(one.tags.get(key) == other.tags.get(key) for key in _SAME)
    return same and one.tags.get("dtype") == _FLOAT and one.version != other.version


def _inputs(session: Session, label: str, version: ModelVersion) -> dict[str, Path]:
    """Return verified files of a version: bundle, converted module and tuning database."""
    folder = session.work_dir / f"version-{version.version}"
    folder.mkdir()
    downloaded = flavor.download(f"models:/{version.name}/{version.version}", folder)
    saved = verify_model(downloaded, version.tags)
    _check_saved(version, saved)
    found = {f"bundle:{label}": saved.bundle}
    found[f"convert:{label}"] = _artifacts(
        session, version, "convert", version.tags.get("convert_run", "")
    )
    found[f"tune:{label}"] = _artifacts(session, version, "tune", _tune_run(session, version))
    return found


def _check_saved(version: ModelVersion, saved: SavedModel) -> None:
    """Refuse a model whose own target this machine's CPU cannot run."""
    target = TargetSpec.from_dict(saved.metadata.target)
    if target.gpu is not None:
        raise ConfigError(_refusal(version, f"the GPU {target.device}"))
    if lacking := target.missing_on_host():
        more = f", and this machine lacks {', '.join(lacking)}"
        raise ConfigError(_refusal(version, target.device, more))


def _tune_run(session: Session, version: ModelVersion) -> str:
    """Return the tune run of a version: a tag of its build run, or of the run around that."""
    run_id = version.tags.get("build_run", "")
    while run_id:
        try:
            tags = session.client.get_run(run_id).data.tags
        except MlflowException as error:
            if not is_missing(error):
                raise
            return ""
        if "tvmopt.stage_run.tune" in tags:
            return str(tags["tvmopt.stage_run.tune"])
        run_id = tags.get(_PARENT, "")
    return ""


def _artifacts(session: Session, version: ModelVersion, stage: str, run_id: str) -> Path:
    try:
        run = session.client.get_run(run_id)
        return checked_artifacts(session.client, run, stage, session.work_dir)
    except (MlflowException, ArtifactError) as error:
        raise ArtifactError(
            f"the {stage} run of version {version.version} of {version.name!r} must be intact to "
            f"be profiled, but artifacts of run {run_id!r} are damaged, gone, or not signed with "
            "the key; run build again"
        ) from error


def _report(
    session: Session, version: ModelVersion, baseline: ModelVersion | None, done: StageOutput
) -> None:
    """Write the page, and log everything to the command's own run."""
    data = json.loads((done.folder / REPORT_FILE).read_text())
    rows = _rows(data, MODEL)
    found = find(
        rows, data["call_us"][MODEL], data["rates"], _rows(data, BASELINE),
        data["call_us"].get(BASELINE),
    )  # fmt: skip
    sections = _sections(found, version.tags.get("strategy", ""))
    facts = {**data["machine"], **_facts(version, baseline)}
    title = f"Profile of {version.name} version {version.version}"
    page = profile_page(title, sections, rows, facts)
    client, run_id = session.client, session.run_id
    client.log_text(run_id, page, PAGE_FILE)
    for file in (TABLE_FILE, BASELINE_TABLE_FILE, TRACE_FILE):
        if (done.folder / file).is_file():
            client.log_artifact(run_id, str(done.folder / file))
    log_metrics(client, run_id, done.metrics)
    lines = [line for section in sections.values() for line in section]
    note = "\n".join(f"- {line}" for line in lines)
    log_tags(
        client, run_id, {"mlflow.note.content": note, "tvmopt.profiled_version": version.version}
    )
    say()
    say(as_text(profile_words.summary_cells(rows)))
    say()
    for line in lines:
        say(line)


def _sections(found: ProfileFindings, strategy: str) -> dict[str, list[str]]:
    return {
        "Where the time goes": profile_words.where_lines(found),
        f"Why {found.dtype} is faster or slower": profile_words.why_lines(found),
        "Distance from the roofline": profile_words.roofline_lines(found),
        "What to try": profile_words.advice_lines(found, strategy),
    }


def _rows(data: dict[str, Any], label: str) -> list[ProfileRow]:
    return [ProfileRow(**row) for row in data["rows"].get(label, ())]


def _facts(version: ModelVersion, baseline: ModelVersion | None) -> dict[str, str]:
    keys = ("target", "dtype", "layout", "strategy", "input_shapes", "skip_layers", "keep_dtype")
    facts = {key: version.tags[key] for key in keys if version.tags.get(key)}
    if baseline is not None:
        facts["float32 build beside it"] = f"version {baseline.version}"
    return facts
