"""One int8 convolution and one int8 dense layer, by the dot-product instructions of every CPU.

The functions are lowered once, and scheduled for each CPU by its policy. They run natively or under
emulation. Tests check that results equal NumPy bit for bit, that the machine code contains the
instruction, that a changed weight changes the result, and that a CPU without the instruction
reports an error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.emulator import amx, find_tools
from tests.emulator import run as run_emulated
from tvmopt import host
from tvmopt.device.llvm import pass_config
from tvmopt.device.target import TargetSpec, resolve_target
from tvmopt.errors import ArtifactError
from tvmopt.kernels.first_choice import Scheduled, schedule_function
from tvmopt.runtime import load
from tvmopt.transform.lower import lower

op, nn = relax.op, relax.op.nn
ANY = tvm.target.Target({"kind": "llvm"})
LAYOUT = {"data_layout": "NHWC", "kernel_layout": "HWIO"}


@dataclasses.dataclass(frozen=True)
class Cpu:
    """A CPU, its operand dtypes, and its dot-product instruction.

    Attributes:
        name: Its name for ``resolve_target``.
        data: Dtype of the data.
        weight: Dtype of the weight.
        instruction: Mnemonic of the dot-product instruction.
        template: The expected kernel template.
        lacks: QEMU's name of a CPU of the family without the instruction.
    """

    name: str
    data: str
    weight: str
    instruction: str
    template: str = "register_tile"
    lacks: str = ""

    @functools.cached_property
    def spec(self) -> TargetSpec:
        return resolve_target(self.name, 2)


CPUS = {
    "VNNI, Zen 4": Cpu("znver4", "uint8", "int8", "vpdpbusd"),
    "VNNI, Cascade Lake": Cpu("cascadelake", "uint8", "int8", "vpdpbusd"),
    "AMX": Cpu("sapphirerapids", "uint8", "int8", "tdpbusd", "matrix_tile"),
    "Hexagon": Cpu("hexagon-v68", "uint8", "int8", "vrmpy"),
    "AArch64, sdot": Cpu("cortex-a76", "int8", "int8", "sdot", lacks="cortex-a53"),
    "AArch64, usdot": Cpu("graviton3", "uint8", "int8", "usdot", lacks="cortex-a76"),
    "RISC-V": Cpu("riscv64-rvv", "uint8", "int8", "vwmulsu", lacks="rv64,v=false"),
}


def cannot_run(cpu: Cpu) -> str:
    """Return why code for ``cpu`` runs neither here nor under emulation; empty when it does."""
    if cpu.spec.isa == "x86_64":
        missing = set(cpu.spec.missing_on_host())
        if cpu.template == "matrix_tile":  # AMX is emulated, and int8 kernels do not use float16
            missing -= {"amx_tile", "amx_int8", "amx_bf16", "avx512_fp16"}
        return f"this CPU lacks {', '.join(sorted(missing))}" if missing else ""
    tools = find_tools(cpu.spec.isa)
    return tools if isinstance(tools, str) else ""


# ---- the functions ----


def requantised(acc: relax.Expr, bias: relax.Expr) -> relax.Expr:
    """Requantize in integers only, because QEMU lacks float vectors on some CPUs."""
    scaled = op.right_shift(op.add(acc, bias), relax.const(12, "int32"))
    return op.astype(op.clip(op.add(scaled, relax.const(128, "int32")), 0, 255), "uint8")


def convolution(x: relax.Expr, w: relax.Expr, b: relax.Expr) -> relax.Expr:
    """Convolve the output of another kernel, so that the padding is in this kernel."""
    pooled = relax.BlockBuilder.current().emit(nn.max_pool2d(x, 1, layout="NHWC"))
    return requantised(nn.conv2d(pooled, w, padding=1, **LAYOUT, out_dtype="int32"), b)


def dense(x: relax.Expr, w: relax.Expr, b: relax.Expr) -> relax.Expr:
    return requantised(op.matmul(x, w, out_dtype="int32"), b)


def convolution_numpy(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
    return np.einsum("nyxcij,ijco->nyxo", windows, w, optimize=True)


@dataclasses.dataclass(frozen=True)
class Layer:
    build: Callable[..., relax.Expr]
    numpy: Callable[[np.ndarray, np.ndarray], np.ndarray]
    data: tuple[int, ...]
    weight: tuple[int, ...]

    def function(self, data: str, weight: str) -> tirx.PrimFunc:
        """Return ``main(x, w, b, y)``, which includes the padding of the data."""
        builder = relax.BlockBuilder()
        shapes = (self.data, data), (self.weight, weight), ((self.weight[-1],), "int32")
        params = [relax.Var(n, relax.TensorType(*s)) for n, s in zip("xwb", shapes, strict=True)]
        with builder.function("main", params, {"num_input": 1}):
            with builder.dataflow():
                out = builder.emit_output(builder.normalize(self.build(*params)))
            builder.emit_func_output(out)
        functions = [f for _, f in lower(builder.get(), ANY).functions_items()]
        [func] = [f for f in functions if isinstance(f, tirx.PrimFunc) and len(f.params) == 4]
        return func.with_attr("global_symbol", "main")

    def operands(self, data: str, weight: str) -> list[np.ndarray]:
        """Return operands from the whole range of their dtypes."""
        rng = np.random.default_rng(0)
        made = [
            rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)
            for shape, dtype in ((self.data, data), (self.weight, weight))
        ]
        return [*made, rng.integers(-30_000, 30_000, self.weight[-1], np.int32)]

    def expected(self, x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
        acc = self.numpy(x.astype(np.int64), w.astype(np.int64)) + b
        return np.clip((acc >> 12) + 128, 0, 255).astype(np.uint8)


LAYERS = {
    "convolution": Layer(convolution, convolution_numpy, (1, 8, 8, 64), (3, 3, 64, 64)),
    "dense": Layer(dense, lambda x, w: x @ w, (12, 192), (192, 80)),
}


def scheduled(cpu: Cpu, layer: str) -> Scheduled:
    func = LAYERS[layer].function(cpu.data, cpu.weight)
    result = schedule_function(func, cpu.spec.arch())
    assert result.rule == cpu.template
    assert result.hint is not None and result.hint.intrinsic
    return result


@functools.cache
def built(name: str, layer: str) -> tvm.runtime.Module:
    cpu = CPUS[name]
    func = scheduled(cpu, layer).func
    with tvm.transform.PassContext(config=pass_config(cpu.spec.isa)):
        return tvm.tirx.build(tvm.IRModule({"main": func}), target=cpu.spec.to_tvm())


def run(name: str, layer: str, operands: list[np.ndarray], qemu: str = "") -> np.ndarray:
    cpu, lib = CPUS[name], built(name, layer)
    result = np.full(LAYERS[layer].expected(*operands).shape, 77, np.uint8)
    if cpu.spec.isa != "x86_64":
        [result] = run_emulated(lib, operands, [result], cpu.spec.isa, cpu=qemu)
        return result
    tensors = [tvm.runtime.tensor(array) for array in (*operands, result)]
    with on_amx() if cpu.template == "matrix_tile" else contextlib.nullcontext():
        lib["main"](*tensors)
    return tensors[-1].numpy()


def on_amx() -> contextlib.AbstractContextManager[object]:
    flags = {"amx_tile", "amx_int8"}
    native = flags <= host.cpu_flags() and host.request_amx(flags)
    return contextlib.nullcontext() if native else amx.emulated()


@pytest.fixture(params=CPUS)
def name(request: pytest.FixtureRequest) -> str:
    """Each CPU whose code runs here, natively or emulated."""
    if reason := cannot_run(CPUS[request.param]):
        pytest.skip(reason)
    return request.param


# ---- the tests ----


@pytest.mark.parametrize("layer", LAYERS)
def test_lowering_is_deterministic_and_fuses_padding_and_requantize(layer):
    first, *others = (LAYERS[layer].function("uint8", "int8") for _ in range(2))
    tvm.ir.assert_structural_equal(first, others[0])
    assert ("if_then_else" in first.script()) == (layer == "convolution")  # the padding
    assert "T.Cast" in first.script() and '"uint8"' in first.script()  # the requantize


@pytest.mark.sample(3)
@pytest.mark.parametrize("layer", LAYERS)
def test_results(name, layer):
    cpu = CPUS[name]
    operands = LAYERS[layer].operands(cpu.data, cpu.weight)
    expected = LAYERS[layer].expected(*operands)
    assert len(np.unique(expected)) > 100
    np.testing.assert_array_equal(run(name, layer, operands), expected)


@pytest.mark.sample(3)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", CPUS)
def test_every_vector_of_the_tile_has_the_instruction(name, layer):
    cpu = CPUS[name]
    *rows, columns = scheduled(cpu, layer).hint.register_tile
    height, lanes = int(np.prod(rows)), cpu.spec.arch().simd_bits // 32
    if cpu.template == "matrix_tile":
        height, lanes = -(-height // 16), 16
    if cpu.name == "riscv64-rvv":
        lanes *= 2  # the accumulator spans two registers
    found = re.findall(rf"\b{cpu.instruction}\b", built(name, layer).inspect_source("asm"))
    assert len(found) >= height * -(-columns // lanes)


@pytest.mark.sample(3)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_changed_weight_changes_its_channel_only(name, layer):
    cpu = CPUS[name]
    x, w, b = LAYERS[layer].operands(cpu.data, cpu.weight)
    expected = LAYERS[layer].expected(x, w, b)
    changed = w.copy()
    changed[..., -1, -1] ^= 0x55  # the last K of the last output channel
    got = run(name, layer, [x, changed, b])
    assert not np.array_equal(got, expected)
    np.testing.assert_array_equal(got[..., :-1], expected[..., :-1])
    np.testing.assert_array_equal(got, LAYERS[layer].expected(x, changed, b))


@pytest.mark.parametrize("name", [name for name, cpu in CPUS.items() if cpu.lacks])
def test_a_cpu_without_the_instruction_faults(name):
    cpu = CPUS[name]
    if reason := cannot_run(cpu):
        pytest.skip(reason)
    operands = LAYERS["dense"].operands(cpu.data, cpu.weight)
    with pytest.raises(ArtifactError, match=f"-cpu {re.escape(cpu.lacks)} died of an illegal inst"):
        run(name, "dense", operands, qemu=cpu.lacks)


@pytest.mark.skipif("amx_tile" in host.cpu_flags(), reason="this CPU has AMX")
def test_the_runtime_refuses_amx_on_a_cpu_without_amx(tmp_path, write_kernel_bundle):
    built("AMX", "dense").export_library(str(tmp_path / "model.so"))
    write_kernel_bundle(tmp_path, CPUS["AMX"].spec.to_dict(), ("tdpbusd",))
    match = r"built for sapphirerapids, and this CPU \(.*\) lacks .*amx_int8.*; build it again"
    with pytest.raises(ArtifactError, match=match):
        load(tmp_path)
