"""Errors in one line, under the name that programs outside of the package import."""

from tvmopt.cli.unexpected import explain, hide_tracebacks

__all__ = ["explain", "hide_tracebacks"]
