"""Every sentence of a report: from plain data to one clear sentence, or a list of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvmopt.search.effort import Effort
from tvmopt.search.plan import FAILED
from tvmopt.search.records import Record
from tvmopt.search.space import Choice
from tvmopt.search.verdict import BY_ACCURACY, BY_LATENCY, BY_SIZE, Finalist, Verdict
from tvmopt.tracking.report.facts import (
    AliasGiven,
    ChampionStays,
    GranularityComparison,
    Importances,
    PromotedBefore,
    Promotion,
    TuningComparison,
    Unproven,
)

_SAME = 5e-4  # of the latency; what is less would be written as 0.0%

# -- why a search ended: stored in its study, and compared there

SPENT_TRIALS = "all {} trials of its budget are done"
SPENT_TIME = "its {:.0f} s are spent"
NO_BETTER = "{} trials in a row brought nothing better"
EXHAUSTED = "everything in its space that could win was tried"

NOTHING_FINISHED = "no trial finished: there is nothing to register"
NOTHING_TO_DRAW = "no trial finished, so there is nothing to draw"


def stop_words(stopped: str) -> str:
    """Say why a search ended."""
    return f"the search ended because {stopped}"


# -- trials


def limit_words(violations: Mapping[str, float]) -> str:
    """List the exceeded limits, with the relative excess; empty when every limit holds."""
    passed = {name: value for name, value in violations.items() if value > 0}
    return ", ".join(f"{name} {value:.0%} over its limit" for name, value in passed.items())


def trial_words(
    p50: float,
    speedup: float,
    reference_ms: float,
    accuracy_drop: float,
    violations: Mapping[str, float],
) -> str:
    """Describe the result of a finished trial.

    Args:
        p50: Its latency in milliseconds.
        speedup: Latency of ONNX Runtime over its latency.
        reference_ms: Latency of ONNX Runtime in milliseconds.
        accuracy_drop: Accuracy lost against the float model.
        violations: Relative violation of each limit; empty for the baseline.
    """
    text = (
        f"p50 {p50:.4g} ms, {speedup:.3g}x of ONNX Runtime ({reference_ms:.4g} ms), accuracy drop "
        f"{accuracy_drop:+.4f}"
    )
    exceeded = limit_words(violations)
    return f"{text}: not feasible, {exceeded}" if exceeded else text


# -- the winner


def verdict_words(verdict: Verdict) -> str:
    """Say which artifact won, and why."""
    winner = verdict.winner
    if verdict.by == BY_LATENCY:
        text, second = f"{winner.label} is the fastest: p50 {_interval(winner)}", verdict.runner_up
        if second is not None:
            text += f", against {_interval(second)} of {second.label}, the next"
        return text
    names = ", ".join(f"{f.label} ({_interval(f)})" for f in verdict.equal)
    why = "has the smallest median, accuracy and size being the same"
    if verdict.by == BY_ACCURACY:
        why = f"loses the least accuracy ({winner.accuracy_drop:+.4f})"
    elif verdict.by == BY_SIZE:
        why = f"has the smallest library ({winner.library_bytes / 1e6:.2f} MB)"
    return f"equally fast, their intervals overlapping: {names}; {winner.label} {why}"


def winner_lines(verdict: Verdict, choice: Choice, reference_ms: float) -> list[str]:
    """Say why a trial won, and how it compares with ONNX Runtime in the same round."""
    winner = verdict.winner
    return [
        f"{verdict_words(verdict)} ({choice})",
        f"ONNX Runtime float32 had p50 {reference_ms:.4g} ms in the same round: "
        f"{winner.label} is {reference_ms / winner.p50:.3g} times as fast",
    ]


def infeasible_lines(
    record: Record, granularities: GranularityComparison | None, version: str
) -> list[str]:
    """Describe a search without a feasible trial, by the trial that exceeds its limits least."""
    return [
        f"no trial keeps to its limits; trial {record.number} ({record.choice}) passes them "
        f"least: {limit_words(record.violations)}",
        *granularity_lines(granularities),
        f"registered as version {version} with the tag feasible=false, not promoted",
    ]


def tuning_lines(found: TuningComparison | None) -> list[str]:
    """Describe the speedup of tuning, when other efforts of the winner's variant are known."""
    if found is None:
        return []
    listed = ", ".join(f"{effort} {p50:.4g} ms" for effort, p50 in found.others)
    text = f"of the same variant: {found.effort} {found.p50:.4g} ms, {listed}"
    slower = any(
        effort.price > found.effort.price and p50 > found.p50 for effort, p50 in found.others
    )
    return [f"{text}; dearer tuning was no better here, so the cheaper is kept" if slower else text]


def granularity_lines(found: GranularityComparison | None) -> list[str]:
    """Compare tuning granularities, unless the winner was compiled without measuring."""
    if found is None:
        return []
    ours, rival = f"tuned by {found.granularity}", found.rival
    if rival is None:
        return [f"{ours}; by {found.other} the same variant was not tried"]
    other = f"by {found.other}" if found.is_twin else f"by {found.other} ({rival.choice.effort})"
    if rival.state == FAILED:
        why = f"its trial failed ({rival.failure})"
        return [f"{ours}; {other} the same variant has no latency: {why}"]
    where = ", measured in their trials"
    if found.in_final:
        where = ", their intervals overlapping" if found.overlap else ""
    text = (
        f"{ours}: {found.p50:.4g} ms; {other} the same variant took "
        f"{found.rival_p50:.4g} ms ({_change(found.p50, found.rival_p50)}{where})"
    )
    exceeded = limit_words(rival.violations)
    return [text if rival.feasible else f"{text}, and is not feasible: {exceeded}"]


def _change(ours: float, theirs: float) -> str:
    ratio = theirs / ours
    if abs(ratio - 1) < _SAME:
        return "as fast"
    return f"{abs(ratio - 1):.1%} {'slower' if ratio > 1 else 'faster'}"


def _interval(one: Finalist) -> str:
    return f"{one.p50:.4g} ms ({one.low:.4g} to {one.high:.4g})"


# -- registration and promotion


def promotion_words(promotion: Promotion) -> str:
    """Say what became of a version: whether it has the alias, and why."""
    outcome = promotion.outcome
    if isinstance(outcome, AliasGiven):
        return _alias_words(outcome)
    if isinstance(outcome, PromotedBefore):
        return outcome.words
    if isinstance(outcome, ChampionStays):
        return _champion_words(outcome)
    if isinstance(outcome, Unproven):
        return _unproven_words(outcome)
    return outcome.error or "no finalist was promoted"


def _alias_words(given: AliasGiven) -> str:
    split = "random inputs (no data was given)"
    if given.held_out_samples:
        split = f"{given.held_out_samples} held-out samples"
    return (
        f"version {given.version} has alias {given.alias}: {given.metric} accuracy "
        f"{given.accuracy:.4f} on {split}, drop {given.drop:+.4f} of at most "
        f"{given.max_accuracy_drop:g}"
    )


def _champion_words(stays: ChampionStays) -> str:
    if stays.verdict is not None:
        why = verdict_words(stays.verdict)
    else:
        why = (
            f"its p50 was {stays.champion_ms:.4g} ms, version {stays.version} has "
            f"{stays.version_ms:.4g} ms"
        )
    return (
        f"version {stays.champion} stays champion: {why} (promote version {stays.version} by hand "
        f"with -e promote -P name={stays.name} -P version={stays.version})"
    )


def _unproven_words(unproven: Unproven) -> str:
    where, board = "on a board", " -P rpc_tracker=HOST:PORT -P rpc_key=KEY"
    if unproven.is_gpu:
        where, board = "on a machine with that GPU", ""
    return (
        f"version {unproven.version} is not promoted: this machine cannot run code for "
        f"{unproven.device}; prove it {where} with -e promote -P name={unproven.name} "
        f"-P version={unproven.version}{board}"
    )


def registration_words(name: str, version: str, promotion: Promotion) -> str:
    """Say under which URI a model is registered, and what became of the version, in Markdown."""
    return f"Registered as `models:/{name}/{version}`; {promotion_words(promotion)}."


# -- tables and charts


def rows_words(shown: int, trials: int) -> list[str]:
    """Say that a table shows the first trials only, if it does."""
    if shown >= trials:
        return []
    return [f"the first {shown} of {trials} trials; all are in trials.md"]


def importance_lines(found: Importances) -> list[str]:
    """Say why parameter importances are missing, if they are."""
    if found.shares:
        return []
    why = "all latencies are the same"
    if found.trials < found.needed:
        why = f"{found.needed} finished trials are needed, but there are {found.trials}"
    return [f"parameter importances are left out: {why}"]


CAPTIONS: Mapping[str, str] = {
    "pareto": (
        "Latency and accuracy of every finished trial: further left is faster, further down is "
        "more accurate. Hollow marks exceed a limit. The grey line joins the Pareto front."
    ),
    "history": (
        "Latency of each trial in the order of the search. The line is the best feasible latency "
        "so far."
    ),
    "importances": (
        "How much of the difference in latency each parameter explains (fANOVA on the logarithm "
        "of the latency)."
    ),
}
"""What each picture of a search shows, by the name of its file."""


TABLE_NOTES: Sequence[str] = (
    "p50 ms is the median latency, with its 95% interval. adjusted ms is the p50 at the speed that "
    "the machine had at trial 0, by ONNX Runtime's latency in both. final p50 ms was measured in "
    "the last round, side by side with the other finalists.",
    "speedup is ONNX Runtime's latency over p50 ms, and accuracy drop is the accuracy lost against "
    "the float model.",
)
"""What the columns of the table of trials mean."""


def variant_words(strategy: str, granularity: str, dtype: str, layout: str) -> str:
    """Return the label of a compiled model in tables: strategy, and conversion settings."""
    parts = ["tvmopt", strategy]
    parts += ["by operator"] if granularity == "operator" else []
    parts += [dtype] if dtype != "float32" else []
    parts += [layout] if layout != "auto" else []
    return " ".join(parts)


def effort_words(effort: Effort) -> str:
    """Return the label of a tuning effort in charts: strategy, and granularity if not subgraph."""
    by = f" by {effort.granularity}" if effort.granularity != "subgraph" else ""
    return f"{effort.strategy}{by}"


# -- what to do next, on the terminal


def reused_lines(stages: Sequence[str]) -> list[str]:
    """List the stages that were reused, if any."""
    if not stages:
        return []
    listed = ", ".join(stages)
    return [f"reused     {listed} (same digest as an earlier run; no_cache=true redoes)"]


def version_lines(name: str, version: str, existed: bool, promotion: Promotion) -> list[str]:
    """Say which version a model has in the registry, and whether it is the champion."""
    state = "already registered" if existed else "registered"
    return [
        f"model      models:/{name}/{version} {state}, alias candidate",
        f"champion   {promotion_words(promotion)}",
    ]


def ui_lines(command: str, page: str) -> list[str]:
    """Say how to start the UI, where no server runs already, and on which page the runs are."""
    start = [f"open the UI     {command}"] if command else []
    return [*start, f"see the runs    {page}"]


def load_line(name: str, version: str, alias: str) -> str:
    """Say how to load a model; ``alias`` is empty when the version has none to load it by."""
    uri = f"models:/{name}@{alias}" if alias else f"models:/{name}/{version}"
    return f"load in Python  mlflow.pyfunc.load_model('{uri}').predict(array)"


def serve_line(command: str) -> str:
    """Say by which command a model is served."""
    return f"serve           {command}"


def pull_line(command: str) -> str:
    """Say by which command a model is taken to the machine that it is compiled for."""
    return f"take it there   {command}"
