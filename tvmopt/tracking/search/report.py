"""Write the report of a search to its run and to the console."""

from __future__ import annotations

import yaml

from tvmopt import host
from tvmopt.choices import CHAMPION
from tvmopt.search.records import Record
from tvmopt.search.study import SearchStudy
from tvmopt.search.tried import FAILED
from tvmopt.tracking.registry import versions as registry
from tvmopt.tracking.report import sentences
from tvmopt.tracking.report.charts import Marked, draw
from tvmopt.tracking.report.page import page
from tvmopt.tracking.report.tables import as_csv, as_markdown, as_text
from tvmopt.tracking.report.trials import narrow, table
from tvmopt.tracking.search.ending import Ending
from tvmopt.tracking.store.console import say
from tvmopt.tracking.store.mlflow_store import runs_page, ui_command
from tvmopt.tracking.store.runs import link_model, log_metrics, log_tags
from tvmopt.tracking.store.stage_run import Session

_MOST_ROWS = 16


def leave_report(session: Session, name: str, study: SearchStudy, ending: Ending) -> str:
    """Log table, plots, page, note and metrics, and print the result.

    Args:
        session: Of the search.
        name: Name of the model.
        study: The study.
        ending: What it came to.

    Returns:
        The trials as text.
    """
    records = [r for r in study.records() if not r.is_void]
    cells = table(records, ending.number, ending.finals)
    folder = session.work_dir / "search"
    folder.mkdir()
    limit = float(study.declaration["limits"]["max_accuracy_drop"])
    marked = Marked(ending.front, ending.number, ending.promoted, limit)
    importances = draw(records, study.space, marked, folder)
    drawn = [folder / f"{picture}.png" for picture in sentences.CAPTIONS]
    pictures = [path for path in drawn if path.exists()]
    why = [
        *ending.why,
        *([] if pictures else [sentences.NOTHING_TO_DRAW]),
        *importances.missing,
        sentences.stop_words(ending.stopped),
    ]
    (folder / "trials.csv").write_text(as_csv(cells))
    (folder / "trials.md").write_text(as_markdown(cells))
    (folder / "space.yaml").write_text(yaml.safe_dump(study.declaration, sort_keys=False))
    facts = {k: str(v) for k, v in session.params.items()} | {"cpu": host.cpu_model()}
    if gpu := study.declaration.get("gpu"):
        facts["gpu"] = gpu
    title = f"{name}: search {study.name}"
    (folder / "report.html").write_text(page(title, why, facts, cells, pictures))
    session.client.log_artifacts(session.run_id, str(folder))
    log_metrics(session.client, session.run_id, _metrics(records, ending, study))
    tags = {
        "mlflow.note.content": _note(why, cells),
        "tvmopt.study": study.name,
        "tvmopt.winner": str(ending.number),
    }
    if ending.version:
        tags["tvmopt.registered_version"] = ending.version
    for version in registry.versions(session.client, name):
        if str(version.version) == ending.version:  # a reused search has registered nothing
            link_model(session.client, session.run_id, registry.logged_model_id(version))
    log_tags(session.client, session.run_id, tags)
    text = as_text(narrow(cells))
    _say_end(session, name, ending, why, text)
    return text


def _note(why: list[str], cells: list[list[str]]) -> str:
    """Return the note: the result, and the first trials, up to MLflow's length limit."""
    rows = narrow(cells)
    lines = [*why, *sentences.rows_words(_MOST_ROWS, len(rows) - 1)]
    shown = "".join(f"- {line}\n" for line in lines)
    return f"{shown}\n{as_markdown(rows[: _MOST_ROWS + 1])}"


def _metrics(records: list[Record], ending: Ending, study: SearchStudy) -> dict[str, float]:
    found = {
        "trials": float(sum(not r.is_baseline for r in records)),
        "trials_feasible": float(sum(r.feasible and not r.is_baseline for r in records)),
        "trials_failed": float(sum(r.state == FAILED for r in records)),
        "search_s": study.worked_s(),
    }
    winner = next((r for r in records if r.number == ending.number), None)
    if winner is not None:
        kept = ("accuracy", "accuracy_drop", "library_bytes", "peak_memory_mb")
        found |= {k: winner.metrics[k] for k in kept if k in winner.metrics}
        found["latency_ms_p50"] = ending.latency_ms
        found["baseline_latency_ms_p50"] = ending.reference_ms
        found["speedup_vs_baseline"] = ending.reference_ms / ending.latency_ms
    return found


def _say_end(session: Session, name: str, ending: Ending, why: list[str], text: str) -> None:
    say()
    say(text)
    say()
    for line in why:
        say(f"- {line}")
    if ending.version:
        say()
        uri = session.client.tracking_uri
        for line in sentences.ui_lines(ui_command(uri), runs_page(uri, session.experiment)):
            say(line)
        alias = CHAMPION if ending.promoted else ""
        say(sentences.load_line(name, ending.version, alias))
