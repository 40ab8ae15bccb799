"""A small search study that tests claim trials of, and finish."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tvmopt.search.budget import Budget
from tvmopt.search.claimed import Claimed
from tvmopt.search.effort import Effort
from tvmopt.search.plan import next_choice
from tvmopt.search.sampler import VariantSampler
from tvmopt.search.space import Space
from tvmopt.search.storage import open_storage
from tvmopt.search.study import SearchStudy, open_study

SPACE = Space(
    ("float32", "int8"),
    {"int8": ("0", "")},
    ("NHWC", "NCHW"),
    (Effort("default"), Effort("fast", 20)),
)
DECLARATION = {"model": "m1", "space": SPACE.to_dict(), "objectives": ["latency"]}
BUDGET = Budget(trials=0, time_s=0.0)


def open_small_study(folder: Path, budget: Budget = BUDGET, **changed: object) -> SearchStudy:
    """Open the study in a folder, with another declaration where values are changed."""
    storage = open_storage(f"sqlite:///{folder / 'studies.db'}")
    return open_study(storage, "s", {**DECLARATION, **changed}, budget)


def claim_next(study: SearchStudy, budget: Budget = BUDGET) -> Claimed | None:
    """Claim the next trial; None when the study has ended."""
    sampler = VariantSampler(0)
    return study.claim(lambda tried: next_choice(study.space, tried, sampler), budget)


def finish_with_latency(claimed: Claimed, latency: float, violation: float = 0.0) -> None:
    """Finish a trial with a latency, and by how much it misses the accuracy bar."""
    claimed.finish({"p50": latency}, {"accuracy_drop": violation}, [latency])


def run_all(study: SearchStudy, budget: Budget) -> None:
    """Claim and finish trials until the budget is spent."""
    study.beat()
    while (claimed := claim_next(study, budget)) is not None:
        finish_with_latency(claimed, 1.0)


def start_python(code: str) -> subprocess.Popen[bytes]:
    """Start Python code that may import the tests; its output is a pipe."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env)
