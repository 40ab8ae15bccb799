"""The commands: what each does in one line, and the function behind it."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable

ENTRIES = {
    "main": (
        "tvmopt.tracking.workflow",
        "Take an ONNX model to a registered, compiled model; the bundled example by default.",
    ),
    "convert": (
        "tvmopt.tracking.workflow",
        "Convert an ONNX model to a layout and a dtype, and check it.",
    ),
    "sensitivity": (
        "tvmopt.tracking.workflow",
        "Measure accuracy loss and time gain of each layer in each dtype.",
    ),
    "tune": ("tvmopt.tracking.workflow", "Find schedules for a model."),
    "build": (
        "tvmopt.tracking.workflow",
        "Compile a model to a library and register it as a candidate.",
    ),
    "evaluate": (
        "tvmopt.tracking.workflow",
        "Measure accuracy and latency of a compiled model against ONNX Runtime.",
    ),
    "search": (
        "tvmopt.tracking.search",
        "Find the fastest artifact of a model that keeps to the limits; goes on where it was left.",
    ),
    "worker": ("tvmopt.tracking.search", "Join the study of a search, and run trials of it."),
    "promote": (
        "tvmopt.tracking.promote",
        "Re-check a registered model on held-out data and move an alias to it.",
    ),
    "pull": (
        "tvmopt.tracking.pull",
        "Bring a registered model to a folder that runs without MLflow.",
    ),
    "serve": (
        "tvmopt.tracking.serve",
        "Serve a registered model over HTTP, with MLflow's protocol, until the command is ended.",
    ),
}
"""Module and summary of each entry point; its function has the name of the entry point."""
DOCTOR = "doctor"
COMMANDS = {
    **{name: summary for name, (_, summary) in ENTRIES.items()},
    DOCTOR: "Print what tvmopt finds on this machine, and how to cure each problem.",
}
"""Summary of each command of ``tvmopt``."""


def function(entry: str) -> Callable[..., object]:
    """Return the function of an entry point; imports the compiler and MLflow."""
    module, _ = ENTRIES[entry]
    found: Callable[..., object] = getattr(importlib.import_module(module), entry)
    return found


def unknown(word: str) -> str:
    """Return one line about a word that is no command, with the commands nearest to it."""
    near = difflib.get_close_matches(word.lower(), COMMANDS)
    said = f"did you mean {' or '.join(near)}?" if near else "see tvmopt --help"
    return f"command must be one of {', '.join(COMMANDS)}, but got {word!r}; {said}"
