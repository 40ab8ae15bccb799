"""The commands: what each does in one line, and the function behind it."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable

from tvmopt.parameters import COMMANDS

_MODULES = {
    "search": "tvmopt.tracking.search.entry_points",
    "worker": "tvmopt.tracking.search.entry_points",
    "profile": "tvmopt.tracking.pipeline.profile",
    "promote": "tvmopt.tracking.registry.promote",
    "pull": "tvmopt.tracking.registry.pull",
    "serve": "tvmopt.tracking.serving.serve",
}
_WORKFLOW = "tvmopt.tracking.pipeline.workflow"
DOCTOR = "doctor"
SUMMARIES = {
    **{name: command.summary() for name, command in COMMANDS.items()},
    DOCTOR: "Print what tvmopt finds on this machine, and how to cure each problem.",
}
"""Summary of each command of ``tvmopt``."""


def function(entry: str) -> Callable[..., object]:
    """Return the function of an entry point; imports the compiler and MLflow."""
    module = importlib.import_module(_MODULES.get(entry, _WORKFLOW))
    found: Callable[..., object] = getattr(module, entry)
    return found


def unknown(word: str) -> str:
    """Return one line about a word that is no command, with the command nearest to it."""
    near = difflib.get_close_matches(word.lower(), SUMMARIES, n=1)
    said = f"did you mean {near[0]}?" if near else "see tvmopt --help"
    return f"command must be one of {', '.join(SUMMARIES)}, but got {word!r}; {said}"
