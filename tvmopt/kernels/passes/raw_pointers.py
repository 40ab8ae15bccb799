"""Calling convention of kernels inside a library: pointers to the tensors' data.

before -> after, of a kernel that TVM lowered for calls from anywhere::

    __tvm_ffi_relu(self, args, num_args, result):      relu(x, y):
      assert num_args == 2, ...                          X = decl_buffer((8,), data=x)
      x = args[0]; assert x.ndim == 1, ...               Y = decl_buffer((8,), data=y)
      X = decl_buffer((8,), data=x.data)                 compute: Y[i] = max(X[i], 0)
      compute: Y[i] = max(X[i], 0)                       return 0
      return 0

The tensors need no checks: the entry function is made with their shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm
import tvm_ffi
from tvm import ir, tirx

from tvmopt.kernels.analysis import variables

#: Attribute of a function that takes pointers in its library: ``PRIVATE``, or ``EXPORTED`` where
#: callers in C call it, too.
INTERNAL = "tvmopt.internal"
PRIVATE, EXPORTED = "private", "exported"

_PREFIX = "__tvm_ffi_"
_ALIGNMENT_BYTES = 64
# Fields of tirx.tvm_struct_get: DLTensor.byte_offset, the value of an argument.
_BYTE_OFFSET, _ARGUMENT = 8, 15


def take_raw_pointers(mod: tvm.IRModule) -> tvm.IRModule:
    """Return a lowered module whose internal functions take pointers, and call each other so."""
    private: dict[str, ir.GlobalVar] = {}
    functions: dict[ir.GlobalVar, tirx.PrimFunc] = {}
    for var, func in mod.functions_items():
        kind = (func.attrs or {}).get(INTERNAL)
        if kind is None:
            functions[var] = func
            continue
        name = str(func.attrs["global_symbol"]).removeprefix(_PREFIX)
        raw = _raw(func)
        if kind == EXPORTED:
            functions[var] = raw.with_attr("global_symbol", name)
        else:
            private[name] = var
            functions[var] = raw
    direct = {var: _call_directly(func, private) for var, func in functions.items()}
    return tvm.IRModule(direct, attrs=mod.attrs)


def _call_directly(func: tirx.PrimFunc, kernels: Mapping[str, ir.GlobalVar]) -> tirx.PrimFunc:
    """Return ``func``, which calls ``kernels`` as functions of its module."""

    def direct(call: ir.Call) -> ir.Call:
        named = call.op == _EXTERN and isinstance(call.args[0], ir.StringImm)
        callee = kernels.get(str(call.args[0].value)) if named else None
        return call if callee is None else ir.Call(callee, call.args[1:], ret_ty=call.ty)

    return func.with_body(tvm_ffi.structural_map(func.body, (ir.Call, direct), order="post"))


_EXTERN = ir.Op.get("tirx.call_extern")


def _raw(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``func`` with a pointer as each parameter, and without checks of them."""
    positions: dict[tirx.Var, int] = {}
    views: dict[int, tirx.DeclBuffer] = {}
    computes: list[tirx.AttrStmt] = []
    offsets: list[tirx.Stmt] = []

    def bind(stmt: tirx.Bind) -> None:
        for struct, index, field in _fields(stmt.value):
            if field == _ARGUMENT and struct.same_as(func.params[1]):
                positions[stmt.var] = index
            elif field == _BYTE_OFFSET:
                offsets.append(tirx.Bind(stmt.var, tirx.const(0, str(stmt.var.ty.dtype))))

    def view(stmt: tirx.DeclBuffer) -> None:
        for handle in variables(stmt.data):
            if handle in positions:
                views[positions[handle]] = stmt

    def compute(stmt: tirx.AttrStmt) -> None:
        if stmt.attr_key == "compute_scope":
            computes.append(stmt)

    tvm_ffi.structural_walk(
        func.body,
        [(tirx.Bind, bind), (tirx.DeclBuffer, view), (tirx.AttrStmt, compute)],
        order="pre",
    )
    [body] = computes
    params = [
        tirx.Var(f"p{i}", ir.PointerType(ir.PrimType("uint8"))) for i in range(len(positions))
    ]
    stmts: list[tirx.Stmt] = [
        tirx.DeclBuffer(one.buffer, data=tirx.reinterpret(one.data.ty, params[i]))
        for i, one in sorted(views.items())
    ]
    whole: tirx.Stmt = tirx.SeqStmt([*stmts, body, tirx.Return(tirx.const(0, "int32"))])
    for key, number in (("device_type", 1), ("device_id", 0)):  # the CPU
        whole = tirx.AttrStmt("default", key, tirx.const(number, "int32"), whole)
    for _, one in sorted(views.items(), reverse=True):
        alignment = tirx.const(_ALIGNMENT_BYTES, "int32")
        whole = tirx.AttrStmt(one.buffer, "storage_alignment", alignment, whole)
    whole = tirx.SeqStmt([*offsets, whole]) if offsets else whole
    attrs = {k: v for k, v in func.attrs.items() if k not in _PUBLIC}
    return tirx.PrimFunc(params, whole, func.ret_type).with_attrs(attrs)


_PUBLIC = ("global_symbol", "calling_conv", "tirx.is_entry_func", INTERNAL)


def _fields(value: ir.Expr) -> list[tuple[ir.Expr, int, int]]:
    """Return which fields of TVM's structures ``value`` reads: structure, index, field."""
    found: list[tuple[ir.Expr, int, int]] = []

    def visit(call: ir.Call) -> None:
        if call.op == _FIELD:
            found.append((call.args[0], int(call.args[1]), int(call.args[2])))

    tvm_ffi.structural_walk(value, (ir.Call, visit))
    return found


_FIELD = ir.Op.get("tirx.tvm_struct_get")
