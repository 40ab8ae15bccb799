"""The entry points as Python functions, under the words of the MLproject file."""

from tvmopt.tracking.promote import promote
from tvmopt.tracking.pull import pull
from tvmopt.tracking.search import SearchResult, search, worker
from tvmopt.tracking.serve import serve
from tvmopt.tracking.workflow import (
    MainResult,
    build,
    convert,
    evaluate,
    main,
    sensitivity,
    tune,
)

__all__ = [
    "MainResult",
    "SearchResult",
    "build",
    "convert",
    "evaluate",
    "main",
    "promote",
    "pull",
    "search",
    "sensitivity",
    "serve",
    "tune",
    "worker",
]
