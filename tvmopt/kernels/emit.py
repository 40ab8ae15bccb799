"""Emit the kernel that a hint configures: apply the schedule and the lowering passes it needs."""

from __future__ import annotations

import dataclasses
from typing import Any

from tvm import s_tir, tirx
from tvm.error import InternalError
from tvm.s_tir import ScheduleError

from tvmopt.errors import last_line
from tvmopt.kernels.backend import backend_of
from tvmopt.kernels.families import by_name
from tvmopt.kernels.family import Family
from tvmopt.kernels.hint import Hint
from tvmopt.kernels.scheduled import SCHEDULED_ATTR
from tvmopt.kernels.workload import Refusal

__all__ = ["SCHEDULED_ATTR", "NotApplicable", "emit", "emit_kernel", "hint_from_dict"]


class NotApplicable(Exception):  # noqa: N818  # an answer, not an error
    """A hint does not fit a function; the message says why."""


def hint_from_dict(data: dict[str, Any]) -> Hint:
    """Rebuild a hint from the result of :meth:`Hint.to_dict`, or from its JSON.

    Raises:
        NotApplicable: When no family of this release has such a configuration.
    """
    name = data["template"]
    config_type = _family(name).config_type
    wanted = {field.name for field in dataclasses.fields(config_type)}
    if unknown := sorted(wanted ^ set(data)):
        raise NotApplicable(
            f"a configuration of {name} has the fields {sorted(wanted)}, but the record differs in "
            f"{unknown}: another release wrote it; tune again"
        )
    return config_type.from_dict(data)


def emit(func: tirx.PrimFunc, hint: Hint) -> s_tir.Schedule | tirx.PrimFunc:
    """Emit the kernel of ``func`` that ``hint`` configures.

    Args:
        func: A TensorIR function after FuseTIR. It is not changed.
        hint: A configuration; ``hint.template`` names its family.

    Returns:
        A schedule of the module ``{"main": func}``, or a generated PrimFunc that replaces ``func``.

    Raises:
        NotApplicable: When the family does not match, or TVM refuses a schedule primitive.
    """
    family = _family(hint.template)
    try:
        made = family.emit(func, hint)
    except (ScheduleError, InternalError) as error:
        raise NotApplicable(f"{hint.template} refused: {last_line(error, None)}") from error
    if isinstance(made, Refusal):
        raise NotApplicable(f"{hint.template}: {made.reason}")
    backend_of(hint.arch).annotate(made, hint.arch)
    return made


def _family(name: str) -> Family[Any, Any]:
    family = by_name().get(name)
    if family is None:
        raise NotApplicable(f"{name} is no kernel family")
    return family


def emit_kernel(func: tirx.PrimFunc, hint: Hint) -> tirx.PrimFunc:
    """Emit the kernel of ``func`` that ``hint`` configures, as a PrimFunc ready to compile.

    Raises:
        NotApplicable: As :func:`emit`.
    """
    return backend_of(hint.arch).finish(emit(func, hint), func)
