"""An object file for each kernel: the same library on any number of cores, no symbol leaks."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from tvmopt import command_cache, forked, host
from tvmopt.build import build_library
from tvmopt.codegen import kernel_objects
from tvmopt.device.target import resolve_target
from tvmopt.errors import BuildError
from tvmopt.kernels.structure import Structure
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
    path = tmp_path_factory.mktemp("objects") / "library.so"
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
    assert symbols.count(" t tvmopt_kernel_") >= 27
    assert "tvmopt_kernel_" not in exported


def _kernels(network: tvm.IRModule) -> dict[str, tvm.tirx.PrimFunc]:
    return {
        var.name_hint: func
        for var, func in network.functions_items()
        if isinstance(func, tvm.tirx.PrimFunc)
    }


def test_few_kernels_are_not_compiled_separately(network) -> None:
    kernels = _kernels(network)
    assert kernel_objects.separate_kernels(kernels).keys() == kernels.keys()
    assert kernel_objects.separate_kernels(dict(list(kernels.items())[:23])) == {}


def test_kernels_of_equal_structure_have_one_symbol_whatever_their_name(network) -> None:
    kernels = _kernels(network)
    symbols = {n: k.symbol for n, k in kernel_objects.separate_kernels(kernels).items()}
    again = {f"{name}_again": func for name, func in kernels.items()}
    found = {n: k.symbol for n, k in kernel_objects.separate_kernels(kernels | again).items()}
    assert found == symbols | {f"{name}_again": symbol for name, symbol in symbols.items()}
    assert len(set(symbols.values())) == len(kernels)


def test_kernels_of_other_structure_with_the_same_hash_have_other_symbols(
    network, monkeypatch
) -> None:
    monkeypatch.setattr(Structure, "__hash__", lambda _self: 1)
    kernels = _kernels(network)
    symbols = [kernel.symbol for kernel in kernel_objects.separate_kernels(kernels).values()]
    assert len(set(symbols)) == len(kernels)


@pytest.fixture
def cache(tmp_path):
    with command_cache.shared_in(tmp_path):
        yield


@pytest.mark.usefixtures("cache")
def test_a_later_build_takes_over_the_object_files(network, library, tmp_path, monkeypatch) -> None:
    def fails(*_):
        raise AssertionError("compiled again")

    build_library(network, _TARGET, tmp_path / "first.so")
    monkeypatch.setattr(kernel_objects, "_write", fails)
    build_library(network, _TARGET, tmp_path / "second.so")
    assert (tmp_path / "second.so").read_bytes() == library.read_bytes()
    with pytest.raises(BuildError, match="compiled again"):
        build_library(network, _TARGET, tmp_path / "other.so", quick=True)


@pytest.mark.usefixtures("cache")
def test_an_object_file_of_another_kernel_with_the_same_hash_is_not_taken_over(
    network, library, tmp_path
) -> None:
    build_library(network, _TARGET, tmp_path / "first.so")
    one, other, *_ = sorted(tmp_path.glob("command-cache/objects-*/*.json"))
    one.write_bytes(other.read_bytes())
    build_library(network, _TARGET, tmp_path / "second.so")
    assert (tmp_path / "second.so").read_bytes() == library.read_bytes()


@pytest.mark.parametrize("cores", [1, 2])
def test_a_kernel_that_does_not_compile(network, tmp_path, monkeypatch, cores) -> None:
    def fails(*_):
        raise ValueError("no register is left")

    monkeypatch.setattr(host, "usable_cores", lambda: cores)
    monkeypatch.setattr(forked, "_is_allowed", True)
    monkeypatch.setattr(kernel_objects, "_write", fails)
    with pytest.raises(BuildError, match="no register is left"):
        build_library(network, _TARGET, tmp_path / "library.so")
