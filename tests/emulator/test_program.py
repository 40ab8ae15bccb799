"""Tests of kernels for other CPUs under QEMU: arguments, results, errors."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import s_tir
from tvm.script import tirx as T  # noqa: N812

from tests.emulator import Tools, find_tools, program, run
from tvmopt.device.target import resolve_target
from tvmopt.errors import ArtifactError, BuildError, ConfigError, EnvironmentSetupError, LimitError

CPUS = {"aarch64": "cortex-a76", "hexagon": "hexagon-v68", "riscv64": "riscv64-rvv"}


def build(func, cpu: str) -> tvm.runtime.Module:
    return tvm.tirx.build(tvm.IRModule({"main": func}), target=resolve_target(cpu).to_tvm())


@pytest.fixture(params=CPUS)
def isa(request):
    tools = find_tools(request.param)
    if isinstance(tools, str):
        pytest.skip(tools)
    return request.param


def elementwise(shape, dtype, *, parallel=False):
    """Compute ``y = x + x`` (``and`` for booleans), and ``z = x``."""

    @T.prim_func(s_tir=True)
    def main(
        X: T.Buffer(shape, dtype),  # noqa: N803
        Y: T.Buffer(shape, dtype),  # noqa: N803
        Z: T.Buffer(shape, dtype),  # noqa: N803
    ) -> None:
        for i, j in T.grid(*shape):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = X[vi, vj] + X[vi, vj] if dtype != "bool" else X[vi, vj]
        for i, j in T.grid(*shape):
            with T.sblock("z"):
                vi, vj = T.axis.remap("SS", [i, j])
                Z[vi, vj] = X[vi, vj]

    sch = s_tir.Schedule(main)
    if parallel:
        for name in "yz":
            sch.parallel(sch.get_loops(sch.get_sblock(name))[0])
    return sch.mod["main"]


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint32", "int64", "float32", "float64", "bool"]
)
def test_types(isa, dtype):
    x = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, (3, 5)).astype(dtype)
    y, z = run(build(elementwise((3, 5), dtype), CPUS[isa]), [x], [x[::-1], np.zeros_like(x)], isa)
    assert (y.dtype, z.dtype) == (x.dtype, x.dtype)
    np.testing.assert_array_equal(y, x if dtype == "bool" else x + x)
    np.testing.assert_array_equal(z, x)


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_copies_of_narrow_floats(isa, dtype):
    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((4,), dtype), Y: T.Buffer((4,), dtype)) -> None:  # noqa: N803
        for i in range(4):
            with T.sblock("y"):
                vi = T.axis.spatial(4, i)
                Y[vi] = X[vi]

    x = np.array([1.5, -2, 0, 3], ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    [y] = run(build(main, CPUS[isa]), [x], [np.zeros_like(x)], isa)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x)


def test_parallel_loops_run_every_task(isa):
    x = np.random.default_rng(0).standard_normal((7, 5), np.float32)
    lib = build(elementwise((7, 5), "float32", parallel=True), CPUS[isa])
    assert "ParallelLaunch" in lib.inspect_source("asm")
    y, z = run(lib, [x], [np.zeros_like(x)] * 2, isa)
    np.testing.assert_array_equal(y, x + x)
    np.testing.assert_array_equal(z, x)


def test_outputs_hold_their_earlier_contents_and_are_not_changed(isa):
    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((40,), "int32"), Y: T.Buffer((40,), "int32")) -> None:  # noqa: N803
        for i in range(40):
            with T.sblock("y"):
                vi = T.axis.spatial(40, i)
                Y[vi] = Y[vi] + X[vi]

    x, earlier = np.arange(80, dtype="int32")[::2], np.full(40, 1000, "int32")
    [y] = run(build(main, CPUS[isa]), [x], [earlier], isa)
    np.testing.assert_array_equal(y, 1000 + x)
    assert (earlier == 1000).all()
    assert y.flags.writeable


def workspace(*, inside):
    """Compute ``y = 3 x`` through a workspace; ``inside`` a loop it exceeds the stack."""

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((8, 65536), "int32"), Y: T.Buffer((8, 65536), "int32")) -> None:  # noqa: N803
        three = T.sblock_alloc_buffer((8, 65536), "int32")
        for i, j in T.grid(8, 65536):
            with T.sblock("three"):
                vi, vj = T.axis.remap("SS", [i, j])
                three[vi, vj] = X[vi, vj] * 3
        for i, j in T.grid(8, 65536):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = three[vi, 65535 - vj]

    sch = s_tir.Schedule(main)
    if inside:
        sch.compute_at(sch.get_sblock("three"), sch.get_loops(sch.get_sblock("y"))[0])
    return sch.mod["main"]


@pytest.mark.sample(3)
@pytest.mark.parametrize("inside", [False, True])
def test_workspaces(isa, inside):
    lib = build(workspace(inside=inside), CPUS[isa])
    x = np.random.default_rng(0).integers(0, 1000, (8, 65536), "int32")
    [y] = run(lib, [x], [np.zeros_like(x)], isa)
    np.testing.assert_array_equal(y, 3 * x[:, ::-1])


def divided(dtype):
    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((64,), dtype),  # noqa: N803
        B: T.Buffer((64,), dtype),  # noqa: N803
        Q: T.Buffer((64,), dtype),  # noqa: N803
        R: T.Buffer((64,), dtype),  # noqa: N803
    ) -> None:
        for i in range(64):
            with T.sblock("y"):
                vi = T.axis.spatial(64, i)
                Q[vi] = T.truncdiv(A[vi], B[vi])
                R[vi] = T.truncmod(A[vi], B[vi])

    return main


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_integer_division(isa, dtype):
    limits, rng = np.iinfo(dtype), np.random.default_rng(0)
    a = rng.integers(limits.min, limits.max, 64, dtype, endpoint=True)
    b = rng.integers(1, 1 << rng.integers(1, 31, 64), 64).astype(dtype)
    if limits.min:
        b *= rng.choice(np.array([-1, 1], dtype), 64)
    a[:2], b[:2] = (limits.min, limits.max), 1
    q, r = run(build(divided(dtype), CPUS[isa]), [a, b], [np.zeros_like(a)] * 2, isa)
    for x, y, quotient, rest in zip(*(v.tolist() for v in (a, b, q, r)), strict=True):
        size = abs(x) // abs(y)
        assert quotient == (size if (x < 0) == (y < 0) else -size)
        assert rest == x - y * quotient


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("floor", np.floor), ("ceil", np.ceil), ("trunc", np.trunc), ("nearbyint", np.rint),
        ("round", np.rint), ("sqrt", lambda x: np.sqrt(np.abs(x))), ("divide", lambda x: 3 / x),
        ("max", lambda x: np.maximum(x, 1)),
    ],
)  # fmt: skip
def test_float_functions(isa, name, expected):
    call = {
        "sqrt": lambda x: T.sqrt(T.fabs(x)),
        "divide": lambda x: T.float32(3) / x,
        "max": lambda x: T.max(x, T.float32(1)),
    }.get(name) or getattr(T, name)

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((64,), "float32"), Y: T.Buffer((64,), "float32")) -> None:  # noqa: N803
        for i in range(64):
            with T.sblock("y"):
                vi = T.axis.spatial(64, i)
                Y[vi] = call(X[vi])

    x = np.random.default_rng(0).uniform(-300, 300, 64).astype("float32")
    x[:10] = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 1e10, -1e10, 0.49999997, 8388609]
    [y] = run(build(main, CPUS[isa]), [x], [np.zeros_like(x)], isa)
    np.testing.assert_array_equal(y, expected(x).astype("float32"))


def test_a_wrong_shape_is_a_config_error(isa):
    lib = build(elementwise((3, 5), "int8"), CPUS[isa])
    x = np.zeros((3, 4), "int8")
    with pytest.raises(ConfigError, match=r"what the kernel was built for, .*ValueError: Inv.*5"):
        run(lib, [x], [x, x], isa)


def test_a_write_past_an_array_is_detected(isa):
    @T.prim_func
    def main(X: T.Buffer((4,), "int32"), Y: T.Buffer((4,), "int32")) -> None:  # noqa: N803
        for i in range(5):
            Y[i] = X[0]

    x = np.ones(4, "int32")
    with pytest.raises(ArtifactError, match="wrote behind the end of one"):
        run(build(main, CPUS[isa]), [x], [x], isa)


def test_an_invalid_read_is_a_crash(isa):
    @T.prim_func
    def main(X: T.Buffer((4,), "int32"), Y: T.Buffer((4,), "int32")) -> None:  # noqa: N803
        Y[0] = X[Y[1]]

    x = np.full(4, 0x1FFFFFF0, "int32")
    with pytest.raises(ArtifactError, match=r"must end by itself, but qemu.* ended with -11"):
        run(build(main, CPUS[isa]), [x], [x], isa)


def test_an_emulator_failure_is_no_kernel_failure(monkeypatch):
    said = b"qemu-riscv64: translate.c:213: Assertion `start != NULL' failed.\n"
    failed = subprocess.CompletedProcess([], -11, b"", said)
    linked = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(shutil, "which", "/bin/{}".format)
    monkeypatch.setattr(program, "_compiled", lambda tools: [b""] * len(tools.sources))
    monkeypatch.setattr(
        subprocess, "run", lambda command, **kw: failed if "qemu" in command[0] else linked
    )
    lib = build(elementwise((3, 5), "int8"), "riscv64-rvv")
    with pytest.raises(EnvironmentSetupError, match=r"itself failed: .*Assertion.*8\.1 or later"):
        run(lib, [], [], "riscv64")


def test_an_undefined_function_is_a_build_error(isa):
    @T.prim_func
    def main(X: T.Buffer((1,), "int32"), Y: T.Buffer((1,), "int32")) -> None:  # noqa: N803
        Y[0] = T.call_extern("int32", "no_such_function", X[0])

    x = np.ones(1, "int32")
    with pytest.raises(BuildError, match="but it calls no_such_function"):
        run(build(main, CPUS[isa]), [x], [x], isa)


def test_code_of_another_cpu(isa):
    lib = build(elementwise((3, 5), "int8"), "x86-64")
    x = np.zeros((3, 5), "int8")
    with pytest.raises(BuildError, match=f"must be {isa} code"):
        run(lib, [x], [x, x], isa)


@pytest.mark.sample(2)
def test_time_is_limited(isa):
    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((1 << 16,), "int32"), Y: T.Buffer((1 << 16,), "int32")) -> None:  # noqa: N803
        for i, j in T.grid(1 << 16, 1 << 16):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SR", [i, j])
                Y[vi] = Y[vi] * X[vj] + vj

    x = np.ones(1 << 16, "int32")
    with pytest.raises(LimitError, match=r"must end within 0.5 s"):
        run(build(main, CPUS[isa]), [x], [x], isa, timeout_s=0.5)


def test_too_many_arrays(isa):
    lib = build(elementwise((3, 5), "int8"), CPUS[isa])
    x = np.zeros((3, 5), "int8")
    with pytest.raises(ArtifactError, match="at most 64 arrays"):
        run(lib, [x] * 64, [x, x], isa)


def test_unknown_cpu(isa):
    x = np.zeros((3, 5), "int8")
    lib = build(elementwise((3, 5), "int8"), CPUS[isa])
    with pytest.raises(ConfigError, match=r"one of `qemu-.* -cpu help`, but got 'z80'"):
        run(lib, [x], [x, x], isa, cpu="z80")


def test_type_without_code(isa):
    x = np.zeros((3, 5), "complex64")
    lib = build(elementwise((3, 5), "int8"), CPUS[isa])
    with pytest.raises(ConfigError, match="integers, floats or booleans, but got complex64"):
        run(lib, [x], [], isa)


def test_isa_without_emulation():
    with pytest.raises(ConfigError, match=r"one of aarch64, riscv64, hexagon .* got 'x86_64'"):
        find_tools("x86_64")


@pytest.mark.parametrize("isa", CPUS)
def test_missing_tools_are_named_with_their_packages(monkeypatch, isa):
    monkeypatch.setattr(shutil, "which", lambda name: None if "qemu" in name else "/bin/" + name)
    missing = find_tools(isa)
    assert re.match(rf"qemu-{isa} must be installed .*apt-get install qemu-user ", missing)
    with pytest.raises(EnvironmentSetupError, match=f"qemu-{isa} must be installed"):
        run(None, [], [], isa)
    monkeypatch.setattr(shutil, "which", "/bin/{}".format)
    assert isinstance(find_tools(isa), Tools)


def test_ci_installs_every_package(monkeypatch):
    monkeypatch.setattr(shutil, "which", "/bin/{}".format)
    script = (Path(__file__).parents[2] / ".ci" / "run").read_text()
    listed = re.search(r"^emulators=\((.*?)\)$", script, re.MULTILINE | re.DOTALL)
    assert set(listed.group(1).split()) == {p for isa in CPUS for p in find_tools(isa).packages}
