"""Predict which values a fused module stores to memory, before lowering.

``conv2d -> add -> relu -> conv2d`` stores ``{relu}``; the other values stay in registers. Mixed
precision chooses dtypes for stored values, so it needs this prediction.

The prediction legalizes and fuses a copy of the module with TVM's own passes. The copy names every
variable after its node, because FuseOps keeps the names of values inside a fused function.
"""

from __future__ import annotations

import dataclasses

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmopt.kernels.call_tir import is_call_tir
from tvmopt.transform.legalize import legalize_map

ELEMENTWISE, INJECTIVE, TUPLE, OPAQUE = 0, 2, 7, 8


@dataclasses.dataclass
class Node:
    """One binding of ``main``, or one of its parameters.

    Attributes:
        var: The bound variable.
        value: The bound expression; None for a parameter.
        uses: Indices of nodes that it reads.
        users: Indices of nodes that read it.
        pattern: TVM's OpPatternKind.
        escapes: Whether the function returns it or a branch reads it.
        stored: Whether it is stored to memory.
    """

    var: relax.Var
    value: relax.Expr | None
    uses: list[int]
    users: list[int]
    pattern: int = OPAQUE
    escapes: bool = False
    stored: bool = True


def dataflow(mod: tvm.IRModule) -> list[Node]:
    """Return the nodes of ``main`` in order, parameters first, with ``stored`` predicted."""
    nodes = _nodes(mod["main"])
    legal = _legalized(mod, nodes)
    patterns = _patterns(legal)
    in_registers = _in_registers(relax.transform.FuseOps()(_separated(legal)))
    for i, node in enumerate(nodes):
        if isinstance(node.value, relax.Tuple):
            node.pattern = TUPLE
        elif isinstance(node.value, relax.TupleGetItem):
            node.pattern = INJECTIVE
        elif isinstance(node.value, relax.Var | tvm.ir.GenericConst):
            node.pattern = ELEMENTWISE
        else:
            node.pattern = patterns.get(_name(i), OPAQUE)
        node.stored = _name(i) not in in_registers
    return nodes


def _nodes(main: relax.Function) -> list[Node]:
    nodes = [Node(param, None, [], []) for param in main.params]
    index = {param: i for i, param in enumerate(main.params)}
    for binding in _bindings(main):
        value = getattr(binding, "value", None)
        uses = sorted({index[v] for v in _read(value) if v in index})
        for use in uses:
            nodes[use].users.append(len(nodes))
        index[binding.var] = len(nodes)
        nodes.append(Node(binding.var, value, uses, []))
    for var in _read(main.body.body):
        if var in index:
            nodes[index[var]].escapes = True
    return nodes


def _legalized(mod: tvm.IRModule, nodes: list[Node]) -> tvm.IRModule:
    """Return ``main`` as TensorIR calls; the variable of node ``i`` has the name ``_name(i)``."""
    rename = _NameAfterNodes({node.var: _name(i) for i, node in enumerate(nodes)})
    named = mod.clone()
    named.update_func(mod.get_global_var("main"), rename.visit_expr(mod["main"]))
    phases = [relax.transform.LegalizeOps(legalize_map()), relax.transform.AnnotateTIROpPattern()]
    return tvm.transform.Sequential(phases)(named)


def _name(node: int) -> str:
    return f"tvmopt_node_{node}"


@mutator
class _NameAfterNodes(PyExprMutator):
    def __init__(self, names: dict[relax.Var, str]) -> None:
        super().__init__()
        self._names = names

    def visit_var_def_(self, var: relax.Var) -> relax.Var:
        name = self._names.get(var, var.name)
        renamed = type(var)(name, var.ty)
        self.set_var_remap(var, renamed)
        return renamed


def _patterns(legal: tvm.IRModule) -> dict[str, int]:
    """Return the operator pattern of each TensorIR call in ``main``, by variable name."""
    found = {}
    for binding in _bindings(legal["main"]):
        value = getattr(binding, "value", None)
        if is_call_tir(value):
            attrs = legal[value.args[0]].attrs or {}
            found[str(binding.var.name)] = int(attrs.get("op_pattern", OPAQUE))
    return found


def _separated(legal: tvm.IRModule) -> tvm.IRModule:
    """Give each call in ``main`` a separate function: FuseOps merges equal fused functions."""
    separate = _Separate(legal)
    main = separate.visit_expr(legal["main"])
    separate.builder_.update_func(legal.get_global_var("main"), main)
    return separate.builder_.get()


@mutator
class _Separate(PyExprMutator):
    def __init__(self, legal: tvm.IRModule) -> None:
        super().__init__(legal)
        self._legal = legal
        self._calls = 0

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        call = super().visit_call_(op)
        if not is_call_tir(call):
            return call
        self._calls += 1
        func = self._legal[call.args[0]].with_attr("tvmopt.call", self._calls)
        own = self.builder_.add_func(func, call.args[0].name_hint)
        return relax.Call(call.op, [own, *call.args[1:]], call.attrs, call.ty_args)


def _in_registers(fused: tvm.IRModule) -> set[str]:
    """Return the names of values inside of fused functions, except the functions' results."""
    found: set[str] = set()
    for _, func in fused.functions_items():
        if isinstance(func, relax.Function) and "Primitive" in (func.attrs or {}):
            found.update(str(binding.var.name) for binding in _bindings(func))
    return found


def _bindings(func: relax.Function) -> list[relax.Binding]:
    return [binding for block in func.body.blocks for binding in block.bindings]


def _read(expr: relax.Expr | None) -> list[relax.Var]:
    """Return the variables that an expression reads, including reads in its branches."""
    found: list[relax.Var] = []
    if expr is not None:
        relax.analysis.post_order_visit(
            expr, lambda e: found.append(e) if isinstance(e, relax.Var) else None
        )
    return found
