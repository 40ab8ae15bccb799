"""Decide which values of a module get a 16-bit twin, for :mod:`.convert`.

A stored value gets a twin when a converted layer reads it, or when it lies between two converted
layers. Values between float32 layers, such as skipped ones, stay exact; the next converted layer
rounds its own input.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from tvm import relax

from .anchor_call import constant_data
from .casting import largest
from .fusion import Node
from .rules import Role, op_name, role

FLOAT = "float32"
# Operators with a small output range for any input.
_BOUNDED = frozenset({"sigmoid", "tanh", "erf", "clip", "nn.softmax", "atan"})


@dataclasses.dataclass
class Step:
    """Decision for one binding: its role, and whether its value gets a 16-bit twin.

    Attributes:
        role: None for converted layers and for expressions other than calls.
        converted: Whether it is a converted layer.
        read: Whether a converted layer reads its value, through data movement at most.
        leads: Whether a converted layer reads its value, through any operators.
        inexact: Whether it depends on a converted layer's result without a reduction in between,
            which would average the rounding errors.
        twin: Whether its value is stored and gets a 16-bit twin.
        huge: Whether its values may overflow the 16-bit dtype, so that the twin saturates.
    """

    role: Role | None = None
    converted: bool = False
    read: bool = False
    leads: bool = False
    inexact: bool = False
    twin: bool = False
    huge: bool = False


def plan_twins(
    nodes: list[Node],
    converted: set[relax.Var],
    kept: frozenset[str],
    dtype: str,
    narrow_norms: bool = False,
) -> dict[relax.Var, Step]:
    """Return the decision for each binding of ``main``.

    Args:
        nodes: Result of :func:`.fusion.dataflow`.
        converted: Variables bound to converted layers.
        kept: Operators that are sensitive in addition to :data:`.rules.SENSITIVE`.
        dtype: The 16-bit dtype.
        narrow_norms: Whether :data:`.rules.NORMS` read 16-bit twins.
    """
    steps = [Step(converted=node.var in converted) for node in nodes]
    centred = _centred(nodes)
    limit = largest(dtype)
    for step, node in zip(steps, nodes, strict=True):
        if isinstance(node.value, relax.Call) and not step.converted:
            sensitive = node.var in centred
            found = role(node.value, node.pattern, kept, narrow_norms)
            step.role = Role.SENSITIVE if sensitive else found
        passes = step.role in (Role.CARRIER, Role.REGISTER) and op_name(node.value) not in _BOUNDED
        if passes or isinstance(node.value, relax.Tuple | relax.TupleGetItem):
            step.huge = any(steps[use].huge for use in node.uses) or _reads_huge(node, limit)
        follows = step.role not in (Role.SENSITIVE, Role.REDUCTION)
        step.inexact = step.converted or (follows and any(steps[u].inexact for u in node.uses))
    for i in reversed(range(len(nodes))):
        users = [(nodes[u], steps[u]) for u in nodes[i].users]
        steps[i].read = any(s.converted or (s.read and _moves(n, s)) for n, s in users)
        steps[i].leads = any(_passes_demand(*user) for user in users)
        # Where float32 is stored anyway, elementwise readers use it.
        wide = nodes[i].escapes or any(steps[u].role is Role.SENSITIVE for u in nodes[i].users)
        is_float = str(getattr(nodes[i].var.ty, "dtype", "")) == FLOAT
        between = steps[i].inexact and steps[i].leads
        steps[i].twin = is_float and (steps[i].read or between) and nodes[i].stored and not wide
    return {node.var: step for node, step in zip(nodes, steps, strict=True)}


def _moves(user: Node, step: Step) -> bool:
    if isinstance(user.value, relax.Call):
        return step.role is Role.CARRIER
    return isinstance(user.value, relax.Tuple | relax.TupleGetItem | relax.Var)


def _passes_demand(user: Node, step: Step) -> bool:
    if step.converted:
        return True
    if isinstance(user.value, relax.Call) and step.role is Role.SENSITIVE:
        return False
    is_data = isinstance(user.value, relax.Call | relax.Tuple | relax.TupleGetItem | relax.Var)
    return is_data and step.leads


def _centred(nodes: list[Node]) -> set[relax.Var]:
    """Return subtractions of a tensor's own mean, as in decomposed normalization layers."""
    found = set()
    for node in nodes:
        if op_name(node.value) != "subtract" or len(node.uses) != 2:
            continue
        for one, other in (node.uses, node.uses[::-1]):
            mean = nodes[other]
            while op_name(mean.value) in ("reshape", "expand_dims", "broadcast_to") and mean.uses:
                mean = nodes[mean.uses[0]]
            if op_name(mean.value) in ("mean", "sum") and mean.uses == [one]:
                found.add(node.var)
    return found


def _reads_huge(node: Node, limit: float) -> bool:
    if not isinstance(node.value, relax.Call):
        return False
    for arg in node.value.args:
        data = constant_data(arg)
        if data is not None and str(arg.ty.dtype) == FLOAT:
            array = data.numpy()
            if array.size and not np.abs(array).max() <= limit:
                return True
    return False
