"""Every sentence of a report: from plain data to one clear sentence, or a list of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvmopt.evaluate.accuracy import Accuracy
from tvmopt.evaluate.drop_interval import confidence_words
from tvmopt.search.effort import Effort
from tvmopt.search.records import Record
from tvmopt.search.space import Choice
from tvmopt.search.verdict import BY_ACCURACY, BY_LATENCY, BY_SIZE, Finalist, Verdict

_SAME = 5e-4  # of the latency; what is less would be written as 0.0%

STOPPED_TRIAL = (
    "stopped, since the time of the search is spent; a search that goes on tries it again"
)

# -- why a search ended: stored in its study, and compared there

SPENT_TRIALS = "all {} trials of its budget are done"
SPENT_TIME = "its {:.0f} s are spent"
NO_BETTER = "{} trials in a row brought nothing better"
EXHAUSTED = "everything in its space that could win was tried"

NOTHING_FINISHED = "no trial finished: there is nothing to register"
NOTHING_TO_DRAW = "no trial finished, so there is nothing to draw"
NOTHING_PROMOTED = "no finalist was promoted"


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


def infeasible_lines(record: Record, granularities: Sequence[str], version: str) -> list[str]:
    """Describe a search without a feasible trial, by the trial that exceeds its limits least."""
    return [
        f"no trial keeps to its limits; trial {record.number} ({record.choice}) passes them "
        f"least: {limit_words(record.violations)}",
        *granularities,
        f"registered as version {version} with the tag feasible=false, not promoted",
    ]


def tuning_words(effort: Effort, p50: float, others: Sequence[tuple[Effort, float]]) -> str:
    """Compare the winner's variant under several tuning efforts.

    Args:
        effort: Effort of the winner.
        p50: Its latency in the final round, in milliseconds.
        others: Effort and latency of each other finalist of the same variant.
    """
    listed = ", ".join(f"{other} {ms:.4g} ms" for other, ms in others)
    text = f"of the same variant: {effort} {p50:.4g} ms, {listed}"
    slower = any(other.price > effort.price and ms > p50 for other, ms in others)
    return f"{text}; dearer tuning was no better here, so the cheaper is kept" if slower else text


def untried_words(ours: str, other: str) -> str:
    """Say that the winner's variant has no trial at the other granularity."""
    return f"tuned by {ours}; by {other} the same variant was not tried"


def failed_words(ours: str, other: str, rival: Record) -> str:
    """Say that the winner's variant failed at the other granularity."""
    return (
        f"tuned by {ours}; by {other} the same variant has no latency: its trial failed "
        f"({rival.failure})"
    )


def granularity_words(
    ours: str, other: str, rival: Record, p50: tuple[float, float], where: str
) -> str:
    """Compare the latencies of the winner's variant at both granularities.

    Args:
        ours: Granularity of the winner.
        other: The other granularity.
        rival: Trial of the same variant at that one.
        p50: Latency of the winner and of the rival in milliseconds.
        where: How they were measured, if that limits what they say.
    """
    text = (
        f"tuned by {ours}: {p50[0]:.4g} ms; by {other} the same variant took {p50[1]:.4g} ms "
        f"({_change(*p50)}{where})"
    )
    exceeded = limit_words(rival.violations)
    return text if rival.feasible else f"{text}, and is not feasible: {exceeded}"


IN_TRIALS, OVERLAPPING = ", measured in their trials", ", their intervals overlapping"
"""How the latencies of two granularities were measured."""


def _change(ours: float, theirs: float) -> str:
    ratio = theirs / ours
    if abs(ratio - 1) < _SAME:
        return "as fast"
    return f"{abs(ratio - 1):.1%} {'slower' if ratio > 1 else 'faster'}"


def _interval(one: Finalist) -> str:
    return f"{one.p50:.4g} ms ({one.low:.4g} to {one.high:.4g})"


# -- registration and promotion


def alias_words(
    version: str, alias: str, accuracy: Accuracy, max_accuracy_drop: float, has_data: bool
) -> str:
    """Say that a version has an alias, since it meets the accuracy bar on held-out samples."""
    split = "random inputs (no data was given)"
    if has_data:
        split = f"{accuracy.samples} held-out samples"
    sure = confidence_words(accuracy.interval, max_accuracy_drop)
    return (
        f"version {version} has alias {alias}: {accuracy.metric} accuracy "
        f"{accuracy.accuracy:.4f} on {split}, drop {accuracy.drop:+.4f} of at most "
        f"{max_accuracy_drop:g}{' (' if sure else ''}{sure}{')' if sure else ''}"
    )


def champion_words(name: str, version: str, champion: str, why: str) -> str:
    """Say that the current champion is better than a version, and how to overrule that."""
    return (
        f"version {champion} stays champion: {why} (promote version {version} by hand "
        f"with -e promote -P name={name} -P version={version})"
    )


def slower_words(champion_ms: float, version: str, version_ms: float) -> str:
    """Compare the latencies that two versions have on their tags."""
    return f"its p50 was {champion_ms:.4g} ms, version {version} has {version_ms:.4g} ms"


def unproven_words(name: str, version: str, device: str, is_gpu: bool) -> str:
    """Say that this machine does not run a version's target, and where to prove the version."""
    where, board = "on a board", " -P rpc_tracker=HOST:PORT -P rpc_key=KEY"
    if is_gpu:
        where, board = "on a machine with that GPU", ""
    return (
        f"version {version} is not promoted: this machine cannot run code for {device}; prove it "
        f"{where} with -e promote -P name={name} -P version={version}{board}"
    )


def registration_words(name: str, version: str, promoted: str) -> str:
    """Say under which URI a model is registered, and what became of the version, in Markdown."""
    return f"Registered as `models:/{name}/{version}`; {promoted}."


# -- tables and charts


def rows_words(shown: int, trials: int) -> list[str]:
    """Say that a table shows the first trials only, if it does."""
    if shown >= trials:
        return []
    return [f"the first {shown} of {trials} trials; all are in trials.md"]


def no_importances_words(trials: int, needed: int) -> str:
    """Say why parameter importances are missing."""
    why = "all latencies are the same"
    if trials < needed:
        why = f"{needed} finished trials are needed, but there are {trials}"
    return f"parameter importances are left out: {why}"


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


def version_lines(name: str, version: str, existed: bool, promoted: str) -> list[str]:
    """Say which version a model has in the registry, and whether it is the champion."""
    state = "already registered" if existed else "registered"
    return [
        f"model      models:/{name}/{version} {state}, alias candidate",
        f"champion   {promoted}",
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
    """Return the sentence with the command that serves a model."""
    return f"serve           {command}"


def pull_line(command: str) -> str:
    """Return the sentence with the command that pulls a model to its target machine."""
    return f"take it there   {command}"
