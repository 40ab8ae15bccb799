"""The entry points as Python functions, under the words of the MLproject file."""

from tvmopt.tracking.pipeline.profile import profile
from tvmopt.tracking.pipeline.workflow import (
    MainResult,
    build,
    convert,
    evaluate,
    main,
    sensitivity,
    tune,
)
from tvmopt.tracking.registry.promote import promote
from tvmopt.tracking.registry.pull import pull
from tvmopt.tracking.search.entry_points import SearchResult, search, worker
from tvmopt.tracking.serving.serve import serve

__all__ = [
    "MainResult",
    "SearchResult",
    "build",
    "convert",
    "evaluate",
    "main",
    "profile",
    "promote",
    "pull",
    "search",
    "sensitivity",
    "serve",
    "tune",
    "worker",
]
