"""Modules of several sizes in one: names of functions, shared kernels, and calls of them."""

# ruff: noqa: N805 (functions of TVMScript have no self)
from __future__ import annotations

import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812
from tvm.script import tirx as T  # noqa: N812

from tvmopt.transform.merge_sizes import merge_sizes


@I.ir_module(s_tir=True)
class Four:
    """A network of four elements."""

    @T.prim_func(s_tir=True)
    def add_one(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("add"):
                v = T.axis.spatial(4, i)
                y[v] = x[v] + T.float32(1)

    @T.prim_func(s_tir=True)
    def constant(y: T.Buffer((2,), "float32")):
        for i in range(2):
            with T.sblock("constant"):
                v = T.axis.spatial(2, i)
                y[v] = T.float32(3)

    @R.function
    def main(
        x: R.Tensor((4,), "float32"),
    ) -> R.Tuple(R.Tensor((4,), "float32"), R.Tensor((2,), "float32")):
        cls = Four
        with R.dataflow():
            y = R.call_tir(cls.add_one, (x,), out_ty=R.Tensor((4,), "float32"))
            z = R.call_tir(cls.constant, R.tuple(), out_ty=R.Tensor((2,), "float32"))
            out = y, z
            R.output(out)
        return out


@I.ir_module(s_tir=True)
class One:
    """The same network of one element."""

    @T.prim_func(s_tir=True)
    def add_one(x: T.Buffer((1,), "float32"), y: T.Buffer((1,), "float32")):
        for i in range(1):
            with T.sblock("add"):
                v = T.axis.spatial(1, i)
                y[v] = x[v] + T.float32(1)

    @T.prim_func(s_tir=True)
    def constant(y: T.Buffer((2,), "float32")):
        for i in range(2):
            with T.sblock("constant"):
                v = T.axis.spatial(2, i)
                y[v] = T.float32(3)

    @R.function
    def main(
        x: R.Tensor((1,), "float32"),
    ) -> R.Tuple(R.Tensor((1,), "float32"), R.Tensor((2,), "float32")):
        cls = One
        with R.dataflow():
            y = R.call_tir(cls.add_one, (x,), out_ty=R.Tensor((1,), "float32"))
            z = R.call_tir(cls.constant, R.tuple(), out_ty=R.Tensor((2,), "float32"))
            out = y, z
            R.output(out)
        return out


@I.ir_module(s_tir=True)
class Both:
    """Both in one module: ``constant`` is shared."""

    @T.prim_func(s_tir=True)
    def add_one(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("add"):
                v = T.axis.spatial(4, i)
                y[v] = x[v] + T.float32(1)

    @T.prim_func(s_tir=True)
    def add_one_1(x: T.Buffer((1,), "float32"), y: T.Buffer((1,), "float32")):
        for i in range(1):
            with T.sblock("add"):
                v = T.axis.spatial(1, i)
                y[v] = x[v] + T.float32(1)

    @T.prim_func(s_tir=True)
    def constant(y: T.Buffer((2,), "float32")):
        for i in range(2):
            with T.sblock("constant"):
                v = T.axis.spatial(2, i)
                y[v] = T.float32(3)

    @R.function
    def main(
        x: R.Tensor((4,), "float32"),
    ) -> R.Tuple(R.Tensor((4,), "float32"), R.Tensor((2,), "float32")):
        cls = Both
        with R.dataflow():
            y = R.call_tir(cls.add_one, (x,), out_ty=R.Tensor((4,), "float32"))
            z = R.call_tir(cls.constant, R.tuple(), out_ty=R.Tensor((2,), "float32"))
            out = y, z
            R.output(out)
        return out

    @R.function
    def main_1(
        x: R.Tensor((1,), "float32"),
    ) -> R.Tuple(R.Tensor((1,), "float32"), R.Tensor((2,), "float32")):
        cls = Both
        with R.dataflow():
            y = R.call_tir(cls.add_one_1, (x,), out_ty=R.Tensor((1,), "float32"))
            z = R.call_tir(cls.constant, R.tuple(), out_ty=R.Tensor((2,), "float32"))
            out = y, z
            R.output(out)
        return out


def _names(mod: tvm.IRModule) -> list[str]:
    return sorted(var.name_hint for var in mod.get_global_vars())


def _called(mod: tvm.IRModule, name: str) -> list[str]:
    """Return the kernels that a Relax function calls."""
    found: list[str] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and getattr(expr.op, "name", "") == "relax.call_tir":
            found.append(expr.args[0].name_hint)

    relax.analysis.post_order_visit(mod[name], visit)
    return sorted(found)


def _kernel(elements: int, added: float) -> tirx.PrimFunc:
    """Return ``y = x + added``."""

    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((elements,), "float32"), y: T.Buffer((elements,), "float32")):
        for i in range(elements):
            with T.sblock("add"):
                v = T.axis.spatial(elements, i)
                y[v] = x[v] + T.float32(added)

    return kernel


def _network(elements: int, **kernels: tirx.PrimFunc) -> tvm.IRModule:
    """Return a network that calls kernels one after another."""
    builder = relax.BlockBuilder()
    ty = relax.TensorType((elements,), "float32")
    x = relax.Var("x", ty)
    variables = [
        builder.add_func(func.with_attr("global_symbol", name), name)
        for name, func in kernels.items()
    ]
    with builder.function("main", [x], {"num_input": 1}):
        with builder.dataflow():
            y = x
            for variable in variables:
                y = builder.emit(relax.call_tir(variable, (y,), ty))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return builder.get()


def test_functions_of_a_further_size_get_its_number() -> None:
    tvm.ir.assert_structural_equal(merge_sizes([Four, One]), Both, map_free_vars=True)


def test_one_size_is_left_alone() -> None:
    assert merge_sizes([Four]) is Four


def test_the_modules_are_not_changed() -> None:
    before = [mod.script() for mod in (Four, One)]
    merge_sizes([Four, One])
    assert [mod.script() for mod in (Four, One)] == before


def test_equal_kernels_are_shared_whatever_their_names() -> None:
    first = _network(4, a=_kernel(4, 1.0), b=_kernel(4, 2.0))
    second = _network(4, other=_kernel(4, 2.0), a=_kernel(4, 1.0))
    merged = merge_sizes([first, second])
    assert _names(merged) == ["a", "b", "main", "main_1"]
    assert _called(merged, "main") == _called(merged, "main_1") == ["a", "b"]


def test_a_kernel_of_further_sizes_is_shared_among_them() -> None:
    first, second, third = (_network(n, a=_kernel(n, 1.0)) for n in (4, 2, 2))
    merged = merge_sizes([first, second, third])
    assert _names(merged) == ["a", "a_1", "main", "main_1", "main_2"]
    assert [_called(merged, f"main{end}") for end in ("", "_1", "_2")] == [["a"], ["a_1"], ["a_1"]]


def test_kernels_of_one_name_that_differ_get_two_names() -> None:
    first, second = _network(4, a=_kernel(4, 1.0)), _network(4, a=_kernel(4, 2.0))
    merged = merge_sizes([first, second])
    assert _names(merged) == ["a", "a_1", "main", "main_1"]
    for name, main, mod in (("a", "main", first), ("a_1", "main_1", second)):
        assert _called(merged, main) == [name]
        assert merged[name].attrs["global_symbol"] == name
        assert tvm_ffi.structural_equal(
            merged[name].without_attr("global_symbol"), mod["a"].without_attr("global_symbol")
        )


def test_a_number_that_is_taken_already_is_avoided() -> None:
    first = _network(4, a=_kernel(4, 1.0), a_1=_kernel(4, 3.0))
    second = _network(2, a=_kernel(2, 1.0))
    merged = merge_sizes([first, second])
    [name] = _called(merged, "main_1")
    assert name not in ("a", "a_1")
    assert merged[name].attrs["global_symbol"] == name
    assert int(merged[name].params[0].shape[0]) == 2
    assert _called(merged, "main") == ["a", "a_1"]


def test_attributes_of_a_network_are_kept() -> None:
    merged = merge_sizes([_network(n, a=_kernel(n, 1.0)) for n in (4, 2)])
    for name in ("main", "main_1"):
        assert merged[name].attrs["global_symbol"] == name
        assert merged[name].attrs["num_input"] == 1


def test_a_kernel_with_the_name_of_a_network_is_refused() -> None:
    first = _network(4, main_1=_kernel(4, 1.0))
    with pytest.raises(AssertionError, match="the network has a kernel of the name main_1"):
        merge_sizes([first, _network(2, a=_kernel(2, 1.0))])
