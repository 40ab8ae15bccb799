"""Sources are split by kernels: the same machine code, all kernels found in the library."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tests.kernels.cuda.toolchain.test_lean import _code
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.cuda.toolchain import modules
from tvmopt.kernels.cuda.toolchain.compiler import compile_cubin
from tvmopt.kernels.cuda.toolchain.split_source import split_source
from tvmopt.measure.cuda_check import difference

H200 = GPUS["nvidia-h200"]
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")

HEAD = "#include <cuda_fp16.h>\n__forceinline__ __device__ int one() { return 1; }\n"


def _source(count: int) -> str:
    names = [f"k{n}" for n in range(count)]
    prototypes = "".join(f'extern "C" __global__ void {name}(int* x);\n' for name in names)
    bodies = "".join(
        f'extern "C" __global__ void __launch_bounds__(128) {name}(int* x) {{\n'
        f"  x[{n}] = one();\n}}\n\n"
        for n, name in enumerate(names)
    )
    return HEAD + prototypes + bodies


@pytest.mark.parametrize(("count", "parts"), [(1, 1), (7, 1), (8, 2), (36, 9), (200, 16)])
def test_every_kernel_is_in_one_part(count: int, parts: int) -> None:
    names = [f"k{n}" for n in range(count)]
    found = split_source(_source(count), names)
    assert len(found) == parts
    assert sorted(name for part in found for name in part.kernels) == sorted(names)
    for part in found:
        defined = re.findall(r"\b(k\d+)\(int\* x\) \{", part.source)
        assert sorted(defined) == sorted(part.kernels)
        assert part.source.startswith(HEAD)


def test_a_source_with_other_kernels_than_expected_is_left_whole() -> None:
    source, names = _source(12), [f"k{n}" for n in range(12)]
    [part] = split_source(source, [*names[1:], "other"])
    assert part.source == source


def _kernels(count: int) -> dict[str, tirx.PrimFunc]:
    return {f"f{n}": difference(1000 + n, "float16") for n in range(count)}


@needs_nvcc
def test_the_parts_give_the_machine_code_of_the_whole(monkeypatch) -> None:
    sources: list[str] = []
    real = modules.split_source
    monkeypatch.setattr(
        modules, "split_source", lambda s, names: sources.append(s) or real(s, names)
    )
    with modules.embed_cubins(H200):
        build_kernels(_kernels(6), H200)
    [source] = sources
    names = re.findall(r"(\w+_kernel(?:_1)?)\([^\n]*;$", source, re.MULTILINE)
    parts = split_source(source, names)
    assert len(parts) == 3
    code: dict[str, bytes] = {}
    for part in parts:
        code |= _code(compile_cubin(part.source, H200))
    assert code == _code(compile_cubin(source, H200))


@needs_nvcc
def test_a_library_finds_the_kernels_of_all_parts(tmp_path) -> None:
    path = tmp_path / "kernels.so"
    with modules.embed_cubins(H200):
        built = build_kernels(_kernels(12), H200)
    built.export_library(str(path))
    loaded = tvm.runtime.load_module(str(path))
    [first] = loaded.imports
    assert len(first.imports) == 5  # two kernels each of 12
    for n in range(12):
        for kernel in (f"f{n}_kernel", f"f{n}_kernel_1"):
            assert loaded.implements_function(kernel, query_imports=True)


@pytest.mark.slow  # nvcc twice
@needs_nvcc
def test_the_library_does_not_depend_on_the_number_of_cores(tmp_path, monkeypatch) -> None:
    contents = []
    for cores in ({0}, set(range(16))):
        monkeypatch.setattr(modules.os, "sched_getaffinity", lambda _, cores=cores: cores)
        path = tmp_path / f"{len(cores)}" / "kernels.so"
        path.parent.mkdir()
        with modules.embed_cubins(H200):
            build_kernels(_kernels(8), H200).export_library(str(path))
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]


@needs_nvcc
def test_an_error_in_one_part_is_the_builds_error() -> None:
    count = te.placeholder((32,), "float32", "A")
    wrong = te.compute((32,), lambda i: tirx.call_extern("float32", "no_such_thing", count[i]))
    sch = tvm.s_tir.Schedule(te.create_prim_func([count, wrong]))
    [loop] = sch.get_loops(sch.get_sblock("compute"))
    sch.bind(loop, "threadIdx.x")
    with pytest.raises(Exception, match="no_such_thing"), modules.embed_cubins(H200):
        build_kernels(_kernels(4) | {"main": sch.mod["main"]}, H200)


def test_host_code_finds_a_function_two_imports_away() -> None:
    """What the parts rely on: the kernels lie in modules that the first part imports."""
    one = te.placeholder((1,), "float32", "A")
    inner = te.compute((1,), lambda i: one[i] + 1.0)
    last = tvm.tirx.build(
        te.create_prim_func([one, inner]).with_attr("global_symbol", "deep"), target="llvm"
    )
    middle = tvm.tirx.build(
        te.create_prim_func([one, inner]).with_attr("global_symbol", "middle"), target="llvm"
    )
    middle.import_module(last)
    result = te.extern(
        (1,), [one], lambda ins, outs: tirx.call_packed("deep", ins[0], outs[0]), dtype="float32"
    )
    first = tvm.tirx.build(
        te.create_prim_func([one, result]).with_attr("global_symbol", "main"), target="llvm"
    )
    first.import_module(middle)
    x, y = (tvm.runtime.tensor(np.float32([value])) for value in (1, 0))
    first["main"](x, y)
    assert y.numpy()[0] == 2.0
