"""Write the report of the entry point ``main`` to its run and to the console."""

from __future__ import annotations

from collections.abc import Sequence

from tvmopt.tracking import registry
from tvmopt.tracking.console import say
from tvmopt.tracking.report import sentences
from tvmopt.tracking.report.facts import Promotion
from tvmopt.tracking.report.tables import as_markdown
from tvmopt.tracking.request import Request
from tvmopt.tracking.runs import log_metrics, log_tags
from tvmopt.tracking.stage_run import Session, StageOutput
from tvmopt.tracking.store import runs_page, ui_command


def variant_of(request: Request) -> str:
    """Return the label of the compiled model in tables."""
    tune, convert = request.tune, request.convert
    return sentences.variant_words(tune.strategy, tune.granularity, convert.dtype, convert.layout)


def log_comparison(session: Session, measured: StageOutput, table: Sequence[Sequence[str]]) -> None:
    """Log the measurements and the comparison table."""
    log_metrics(session.client, session.run_id, measured.metrics)
    session.client.log_text(session.run_id, as_markdown(table), "comparison.md")
    session.client.log_artifact(session.run_id, str(measured.folder / "comparison.csv"))


def log_note(
    session: Session,
    registered: registry.Registered,
    promotion: Promotion,
    table: Sequence[Sequence[str]],
) -> None:
    """Log the run's note: the comparison table, and what became of the version."""
    words = sentences.registration_words(registered.name, registered.version, promotion)
    tags = {
        "mlflow.note.content": f"{as_markdown(table)}\n{words}\n",
        "tvmopt.registered_version": registered.version,
        "tvmopt.promotion": sentences.promotion_words(promotion),
    }
    log_tags(session.client, session.run_id, tags)


def say_end(
    session: Session,
    request: Request,
    registered: registry.Registered,
    promotion: Promotion,
    reused: Sequence[str],
) -> None:
    """Print what became of the model, and what to do next."""
    name, version = registered.name, registered.version
    for line in sentences.reused_lines(reused):
        say(line)
    for line in sentences.version_lines(name, version, registered.existed, promotion):
        say(line)
    say()
    uri = session.client.tracking_uri
    for line in sentences.ui_lines(ui_command(uri), runs_page(uri, session.experiment)):
        say(line)
    if request.target.missing_on_host():
        say(sentences.pull_line(name, version))
        return
    say(sentences.load_line(name, version, registry.CHAMPION if promotion.done else ""))
    say(sentences.serve_line(name, "" if promotion.done else version))
