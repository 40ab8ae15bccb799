"""Kernels in several object files: the same library on any number of cores, and no symbol leaks."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from tvmopt import forked, host
from tvmopt.build import build_library
from tvmopt.codegen import kernel_parts
from tvmopt.device.target import resolve_target
from tvmopt.errors import BuildError
from tvmopt.runtime.executor import MAIN
from tvmopt.runtime.library import open_library
from tvmopt.transform.lower import lower

_TARGET = resolve_target("host", 1)
_WIDTHS = range(8, 34)
_X = np.random.default_rng(0).random((4, 8), np.float32)


def _weights() -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.standard_normal((n, n + 1), np.float32) / 4 for n in _WIDTHS]


@pytest.fixture(scope="module")
def network() -> tvm.IRModule:
    """Return ``exp`` and 26 GEMMs of different widths, lowered."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x], {"num_input": 1}):
        with builder.dataflow():
            value = builder.emit(op.exp(x))
            for weight in _weights():
                value = builder.emit(op.matmul(value, relax.const(weight)))
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return lower(builder.get(), _TARGET.to_tvm())


@pytest.fixture(scope="module")
def library(network, tmp_path_factory):
    path = tmp_path_factory.mktemp("parts") / "library.so"
    assert build_library(network, _TARGET, path).native
    return path


def test_the_network_computes_the_same(library) -> None:
    executor = open_library(str(library), threads=1, native=True, device=tvm.cpu())
    [got] = executor.bind(MAIN, [executor.tensor(_X)])()
    wanted = np.exp(_X)
    for weight in _weights():
        wanted = wanted @ weight
    np.testing.assert_allclose(executor.read(got), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cores", [1, 3])
def test_the_library_does_not_depend_on_cores(
    network, library, tmp_path, monkeypatch, cores
) -> None:
    monkeypatch.setattr(host, "usable_cores", lambda: cores)
    monkeypatch.setattr(forked, "_is_allowed", True)
    build_library(network, _TARGET, tmp_path / "again.so")
    assert (tmp_path / "again.so").read_bytes() == library.read_bytes()


def test_kernels_are_for_their_library_only(library) -> None:
    listed = ["nm", "--defined-only", str(library)]
    symbols, exported = (
        subprocess.run([*listed, *more], capture_output=True, text=True, check=True).stdout
        for more in ((), ("-D",))
    )
    assert f"t {kernel_parts.KERNEL}tir_exp1\n" in symbols
    assert kernel_parts.KERNEL not in exported


def test_parts_have_all_kernels_and_few_kernels_are_not_divided(network) -> None:
    kernels = {
        var.name_hint: func
        for var, func in network.functions_items()
        if isinstance(func, tvm.tirx.PrimFunc)
    }
    parts = kernel_parts.kernel_parts(kernels)
    names = [[var.name_hint for var in part.get_global_vars()] for part in parts]
    assert [len(one) for one in names] == [14, 13]
    found = sorted(name for one in names for name in one)
    assert found == sorted(kernel_parts.KERNEL + name for name in kernels)
    assert kernel_parts.kernel_parts(dict(list(kernels.items())[:23])) == ()


@pytest.mark.parametrize("cores", [1, 2])
def test_a_part_that_does_not_compile(network, tmp_path, monkeypatch, cores) -> None:
    def fails(*_):
        raise ValueError("no register is left")

    monkeypatch.setattr(host, "usable_cores", lambda: cores)
    monkeypatch.setattr(forked, "_is_allowed", True)
    monkeypatch.setattr(kernel_parts, "_write", fails)
    with pytest.raises(BuildError, match="no register is left"):
        build_library(network, _TARGET, tmp_path / "library.so")
