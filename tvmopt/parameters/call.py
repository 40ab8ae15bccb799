"""Entry points as Python functions: keywords are the command's parameters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from tvmopt.parameters.command import Command

_C = TypeVar("_C", bound=Command)


def entry_point(
    command: type[_C], dry_run: Callable[[_C], None] | None = None
) -> Callable[[Callable[[_C], Any]], Callable[..., Any]]:
    """Let a function of a command be called with the command's parameters.

    ``main(model="net.onnx", topk=5)`` calls the function with a ``MainCommand``. Signature and
    documentation follow the declarations.

    Args:
        command: The command.
        dry_run: Called instead of the function when the parameter ``dry_run`` is true; then the
            call returns None.

    Raises:
        ConfigError: When called with an unknown parameter, or a value that breaks its rule.
    """
    signature = inspect.Signature(
        [
            inspect.Parameter(
                one.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=inspect.Parameter.empty if one.default is None else one.default,
                annotation=one.kind.__name__,
            )
            for one in sorted(command.parameters(), key=lambda one: one.default is not None)
        ]
    )
    described = "\n".join(f"    {one.name}: {one.help}" for one in command.parameters())

    def decorate(function: Callable[[_C], Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*values: Any, **named: Any) -> Any:
            names = list(signature.parameters)[: len(values)]
            if len(values) > len(names):
                signature.bind(*values)  # raises the TypeError that Python words
            asked = command.of({**dict(zip(names, values, strict=True)), **named})
            if dry_run is not None and asked.values()["dry_run"]:
                return dry_run(asked)
            return function(asked)

        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nArgs:\n{described}\n"
        del call.__wrapped__
        return call

    return decorate
