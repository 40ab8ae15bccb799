"""Write the report of the entry point ``main`` to its run and to the console."""

from __future__ import annotations

from collections.abc import Sequence

from tvmopt.choices import CHAMPION
from tvmopt.tracking.pipeline.request import Request
from tvmopt.tracking.registry.promotion import Promotion
from tvmopt.tracking.registry.versions import Registered
from tvmopt.tracking.report import sentences
from tvmopt.tracking.report.tables import as_markdown
from tvmopt.tracking.store.console import say
from tvmopt.tracking.store.mlflow_store import runs_page, ui_command
from tvmopt.tracking.store.next_command import next_command
from tvmopt.tracking.store.runs import log_metrics, log_tags
from tvmopt.tracking.store.stage_run import Session, StageOutput


def variant_of(request: Request) -> str:
    """Return the label of the compiled model in tables."""
    tune, convert = request.tune, request.convert
    return sentences.variant_words(
        tune.strategy, tune.granularity, convert.computed_dtype, convert.layout
    )


def log_comparison(session: Session, measured: StageOutput, table: Sequence[Sequence[str]]) -> None:
    """Log the measurements and the comparison table."""
    log_metrics(session.client, session.run_id, measured.metrics)
    session.client.log_text(session.run_id, as_markdown(table), "comparison.md")
    session.client.log_artifact(session.run_id, str(measured.folder / "comparison.csv"))


def log_note(
    session: Session,
    registered: Registered,
    promotion: Promotion,
    table: Sequence[Sequence[str]],
) -> None:
    """Log the run's note: the comparison table, and what became of the version."""
    words = sentences.registration_words(registered.name, registered.version, promotion.words)
    tags = {
        "mlflow.note.content": f"{as_markdown(table)}\n{words}\n",
        "tvmopt.registered_version": registered.version,
        "tvmopt.promotion": promotion.words,
    }
    log_tags(session.client, session.run_id, tags)


def say_end(
    session: Session,
    request: Request,
    registered: Registered,
    promotion: Promotion,
    reused: Sequence[str],
) -> None:
    """Print what became of the model, and what to do next."""
    name, version = registered.name, registered.version
    for line in sentences.reused_lines(reused):
        say(line)
    for line in sentences.version_lines(name, version, registered.existed, promotion.words):
        say(line)
    say()
    uri = session.client.tracking_uri
    for line in sentences.ui_lines(ui_command(uri), runs_page(uri, session.experiment)):
        say(line)
    if request.target.missing_on_host():
        say(sentences.pull_line(next_command("pull", name=name, version=version)))
        return
    say(sentences.load_line(name, version, CHAMPION if promotion.done else ""))
    which = "" if promotion.done else version
    say(sentences.serve_line(next_command("serve", name=name, version=which)))
