"""Records of trials, made up: their space, finished and failed ones, a final round."""

from __future__ import annotations

from dataclasses import replace

from tvmopt.search.records import ADJUSTED, Record
from tvmopt.search.space import BASELINE, Choice, Effort, Space, Variant
from tvmopt.search.verdict import Finalist
from tvmopt.tracking.search.finals import Final

DEFAULT, FAST, META = Effort("default"), Effort("fast", 20), Effort("metaschedule", 64)
FAST_OPERATOR, META_OPERATOR = (replace(e, granularity="operator") for e in (FAST, META))
NHWC = Variant("float32", "", "NHWC")
SPACE = Space(
    ("float32", "int8"), {"int8": ("", "0")}, ("NHWC", "NCHW"),
    (DEFAULT, FAST_OPERATOR, FAST, META_OPERATOR, META),
)  # fmt: skip
CHOICES = [Choice(v, e) for v in SPACE.variants() for e in SPACE.efforts]


def record(
    number: int, choice: Choice, ms: float, drop: float = 0.0, mb: float = 1.0, adjusted: float = 0
) -> Record:
    """Return a finished trial; accuracy drops above 0.01 exceed the limit."""
    metrics = {
        "latency_ms_p50": ms, "latency_ms_ci_low": 0.99 * ms, "latency_ms_ci_high": 1.01 * ms,
        ADJUSTED: adjusted or ms, "baseline_latency_ms_p50": 2.0, "speedup_vs_baseline": 2.0 / ms,
        "accuracy_drop": drop, "library_bytes": mb * 1e6,
    }  # fmt: skip
    passed = {"accuracy_drop": (drop - 0.01) / 0.01}
    values, run = (adjusted or ms,), f"run{number}"
    return Record(number, choice, "finished", run, metrics, passed, values, "", "", {}, 10.0)


def failed(number: int, choice: Choice, failure: str) -> Record:
    """Return a failed trial."""
    return Record(number, choice, "failed", "", {}, {}, (), failure, "it broke", {}, 1.0)


def running(number: int, choice: Choice) -> Record:
    """Return a trial that runs."""
    return Record(number, choice, "running", "", {}, {}, (), "", "", {}, None)


def finalist(label: str, ms: float, mb: float = 1.0, half: float = 0.01) -> Finalist:
    """Return a finalist; ``half`` is half its interval, relative."""
    return Finalist(label, ms, (1 - half) * ms, (1 + half) * ms, 0.0, mb * 1e6)


def final(records: list[Record], champion: Finalist | None = None) -> Final:
    """Return a final round of trials."""
    finalists = tuple(finalist(f"trial {r.number}", r.values[0]) for r in records)
    return Final(finalists, {f"trial {r.number}": r for r in records}, 2.0, champion, "run")


RECORDS = [
    record(0, BASELINE, 5.0),
    record(1, CHOICES[0], 1.0),
    record(2, CHOICES[1], 0.5, drop=0.3),
    failed(3, CHOICES[2], "timeout"),
    failed(4, CHOICES[3], "orphaned"),
    record(5, CHOICES[4], 0.9),
    record(6, CHOICES[5], 0.8),
]
