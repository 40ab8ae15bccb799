"""Held-out samples refuse a leading trial when it ends, while there is time to try another choice.

Only held-out samples make a champion, and the fastest trials often have the same accuracy: samples
that refuse one refuse its neighbours. A search that learned it in its last round alone would be
left with float32. They rank nothing, they refuse.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvmopt.digest import sha256_file
from tvmopt.errors import LimitError
from tvmopt.runtime.metadata import METADATA_FILE, ModelMetadata
from tvmopt.search.choose import FLOAT
from tvmopt.search.limits import HELDOUT_DROP
from tvmopt.search.records import ADJUSTED, Record
from tvmopt.search.space import BASELINE, Choice
from tvmopt.stages.build import BUNDLE_DIR
from tvmopt.tracking.flavor.in_child import heldout_accuracy
from tvmopt.tracking.flavor.verify import SavedModel
from tvmopt.tracking.pipeline.request import Request
from tvmopt.tracking.store.exclusive import turn
from tvmopt.tracking.store.stage_run import Session, StageOutput


def leads(choice: Choice, adjusted_ms: float, records: Sequence[Record]) -> bool:
    """Return whether a feasible trial is the fastest one so far, and not known to be accurate.

    float32 is, and what was judged in another layout or at another effort.

    Args:
        choice: Its choice.
        adjusted_ms: Its latency, as of :data:`~tvmopt.search.records.ADJUSTED`.
        records: Trials of the study.
    """
    variant = choice.variant.in_any_layout
    if choice == BASELINE or variant.dtype == FLOAT:
        return False
    for record in records:
        if not record.feasible or record.is_baseline:
            continue
        if record.metrics[ADJUSTED] <= adjusted_ms:
            return False
        if record.choice.variant.in_any_layout == variant and HELDOUT_DROP in record.metrics:
            return False
    return True


def measure_heldout_drop(
    session: Session, request: Request, converted: StageOutput, built: StageOutput
) -> dict[str, float]:
    """Return the accuracy drop on held-out samples, by name; nothing when time ends before.

    Other processes of the study do not measure latencies meanwhile.

    Args:
        session: Of the trial.
        request: Of the trial.
        converted: Its convert stage.
        built: Its build stage.

    Raises:
        TvmoptError: When the artifact crashes or misses its golden output.
    """
    bundle = built.folder / BUNDLE_DIR
    saved = SavedModel(bundle, ModelMetadata.read(bundle), sha256_file(bundle / METADATA_FILE))
    try:
        with turn(measuring=False, say=session.say):
            accuracy = heldout_accuracy(
                session.client, saved, converted.folder, request.data, request.asked.metric,
                session.work_dir, request.board, session.allow(), session.run_id,
            )  # fmt: skip
    except LimitError:
        return {}  # the promotion measures it again
    return {HELDOUT_DROP: accuracy.drop}
