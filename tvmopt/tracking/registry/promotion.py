"""Promotion: a version becomes ``champion`` by its accuracy on held-out samples."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from tvmopt.choices import CHAMPION
from tvmopt.errors import (
    ArtifactError,
    ConfigError,
    PromotionRefusedError,
    StageFailedError,
    TvmoptError,
)
from tvmopt.evaluate.accuracy import Accuracy
from tvmopt.parameters.groups import MetricParameters
from tvmopt.remote import Board
from tvmopt.search.verdict import Verdict
from tvmopt.stages.launch import UNLIMITED
from tvmopt.stages.watch import Allowance
from tvmopt.tracking import flavor
from tvmopt.tracking.flavor.in_child import heldout_accuracy
from tvmopt.tracking.flavor.verify import verify_model
from tvmopt.tracking.registry.versions import Registered, champion_alias, find_version
from tvmopt.tracking.report import sentences
from tvmopt.tracking.store.console import say
from tvmopt.tracking.store.missing import is_missing
from tvmopt.tracking.store.trust import checked_artifacts

# Top-1 with class indices as labels, else fidelity.
_FITTING = MetricParameters()


@dataclasses.dataclass(frozen=True)
class Promotion:
    """Result of a promotion.

    Attributes:
        done: Whether the version has the alias now.
        words: Why, in one sentence.
    """

    done: bool
    words: str


def promote_version(
    client: MlflowClient,
    name: str,
    version: str,
    *,
    data: Path | None,
    max_accuracy_drop: float,
    work_dir: Path,
    metric: MetricParameters = _FITTING,
    alias: str = CHAMPION,
    board: Board | None = None,
    allowance: Allowance = UNLIMITED,
    run_id: str | None = None,
) -> Promotion:
    """Re-check a version and give it ``alias`` and ``<alias>-<target>``.

    It must load (hash, TVM version, CPU), reproduce its golden output, and lose at most
    ``max_accuracy_drop`` by ``metric`` on the held-out split of the data; without data, on random
    inputs against the float model. The alias's former holder gets ``previous-<alias>``. With a
    ``board``, it runs there instead of here. It runs in a child process, which may use
    ``allowance``; when that fails, the run ``run_id`` gets its log.

    Raises:
        ConfigError: There is no such model or version.
        PromotionRefusedError: With the reason; no alias is moved then.
    """
    found = find_version(client, name, version)
    accuracy = _check(
        client, found, data, metric, max_accuracy_drop, work_dir, board, allowance, run_id
    )
    number = str(found.version)
    former = client.get_registered_model(name).aliases.get(alias)
    if former is not None and str(former) != number:
        client.set_registered_model_alias(name, f"previous-{alias}", former)
    client.set_registered_model_alias(name, alias, number)
    if alias == CHAMPION:
        client.set_registered_model_alias(
            name, champion_alias(found.tags.get("target", "unknown")), number
        )
    client.set_model_version_tag(name, number, "heldout_accuracy", f"{accuracy.accuracy:.6g}")
    words = sentences.alias_words(number, alias, accuracy, max_accuracy_drop, data is not None)
    return Promotion(True, words)


def promote_if_better(
    client: MlflowClient,
    registered: Registered,
    *,
    data: Path | None,
    max_accuracy_drop: float,
    work_dir: Path,
    evidence: str,
    metric: MetricParameters = _FITTING,
    stays: Verdict | None = None,
    compared: bool = False,
    board: Board | None = None,
    allowance: Allowance = UNLIMITED,
    run_id: str | None = None,
) -> Promotion:
    """Promote, unless the champion is the same model on the same target and faster.

    A champion that loses more accuracy than is allowed now is no rival.

    Args:
        client: Client of the registry.
        registered: The version.
        data: Evaluation data; its held-out part is used.
        max_accuracy_drop: Most accuracy that it may lose.
        work_dir: Folder for temporary files.
        evidence: Digest of what it was measured on; a champion that earned its alias on the same
            evidence is not checked again.
        metric: What accuracy means.
        stays: Result of measuring the champion and the version side by side, when the champion is
            better.
        compared: Whether they were measured so; else the p50 on their tags is compared.
        board: Where to check it, if not here.
        allowance: What the process that runs it may use.
        run_id: Run that gets the log of that process when it fails.

    Raises:
        PromotionRefusedError: When the version may not be champion at all.
    """
    current = champion_of(client, registered.name)
    key = f"{evidence} {max_accuracy_drop:g}"
    if (
        current is not None
        and str(current.version) == registered.version
        and current.tags.get("promoted_on") == key
    ):
        return Promotion(True, current.tags["promotion"])
    mine = client.get_model_version(registered.name, registered.version)
    if current is not None and str(current.version) != registered.version:
        same = all(
            current.tags.get(key) == mine.tags.get(key)
            for key in ("model_sha256", "input_shapes", "target", "threads")
        )
        accurate = float(current.tags.get("accuracy_drop", "inf")) <= max_accuracy_drop
        slower = stays is not None if compared else _p50(current) < _p50(mine)
        if same and accurate and slower:
            if stays is not None:
                why = sentences.verdict_words(stays)
            else:
                why = sentences.slower_words(_p50(current), registered.version, _p50(mine))
            named = (registered.name, registered.version, str(current.version))
            return Promotion(False, sentences.champion_words(*named, why))
    promoted = promote_version(
        client,
        registered.name,
        registered.version,
        data=data,
        max_accuracy_drop=max_accuracy_drop,
        work_dir=work_dir,
        metric=metric,
        board=board,
        allowance=allowance,
        run_id=run_id,
    )
    for tag, value in (("promoted_on", key), ("promotion", promoted.words)):
        client.set_model_version_tag(registered.name, registered.version, tag, value)
    return promoted


def _p50(version: ModelVersion) -> float:
    return float(version.tags.get("latency_ms_p50", "inf"))


def champion_of(client: MlflowClient, name: str) -> ModelVersion | None:
    """Return the version with the alias ``champion``; None without one, or without the model.

    Raises:
        MlflowException: When the registry does not answer. It may have a champion then.
    """
    try:
        return client.get_model_version_by_alias(name, CHAMPION)
    except MlflowException as error:
        if not is_missing(error):
            raise
        return None


def _check(
    client: MlflowClient,
    version: ModelVersion,
    data: Path | None,
    metric: MetricParameters,
    max_accuracy_drop: float,
    work_dir: Path,
    board: Board | None,
    allowance: Allowance,
    run_id: str | None,
) -> Accuracy:
    what = f"version {version.version} of {version.name!r}"
    try:
        folder = flavor.download(f"models:/{version.name}/{version.version}", work_dir)
        saved = verify_model(folder, version.tags)
        converted = _converted(client, version, work_dir)
        given = (client, saved, converted, data, metric, work_dir, board, allowance, run_id)
        try:
            accuracy = heldout_accuracy(*given)
        except StageFailedError as error:
            if error.failure_class != "killed":
                raise
            # A kill says nothing about the model, and a search does not come back to its end.
            say(f"promotion  {what}: {error}; once more")
            accuracy = heldout_accuracy(*given)
    except ConfigError:
        raise
    except TvmoptError as error:
        raise PromotionRefusedError(f"{what} is not promoted: {error}") from error
    if not accuracy.drop <= max_accuracy_drop:
        raise PromotionRefusedError(
            f"{what} is not promoted: accuracy drop must be at most {max_accuracy_drop:g} on "
            f"held-out samples, but it is {accuracy.drop:.4f} ({accuracy.metric} "
            f"{accuracy.accuracy:.4f} against {accuracy.reference:.4f}, {accuracy.samples} samples)"
            "; raise max_accuracy_drop if that is good enough",
            drop=accuracy.drop,
            samples=accuracy.samples,
        )
    return accuracy


def _converted(client: MlflowClient, version: ModelVersion, work_dir: Path) -> Path:
    """Return the artifacts of the version's convert run, with the float reference."""
    run_id = version.tags.get("convert_run", "")
    try:
        return checked_artifacts(client, client.get_run(run_id), "convert", work_dir)
    except MlflowException as error:
        if not is_missing(error):
            raise
        raise PromotionRefusedError(
            f"the float reference of the model is needed, but its convert run {run_id!r} is gone; "
            "run main again"
        ) from error
    except ArtifactError as error:
        raise PromotionRefusedError(
            f"the float reference of the model must be intact, but artifacts of run {run_id!r} are "
            "damaged, gone, or not signed with the key; run main again"
        ) from error
