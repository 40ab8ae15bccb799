"""Run a CUDA schedule on the CPU, with its threads as serial loops.

Before lowering, a schedule is an ordinary program whose register buffers are whole arrays: the
result does not depend on which loops are bound to threads.
"""

from __future__ import annotations

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from tests.emulator import cuda as emulate
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.emit import emit, emit_kernel
from tvmopt.kernels.families import by_name

H200 = GPUS["nvidia-h200"]
_THREAD_BINDING, _SERIAL = 4, 0
_CPU = tvm.target.Target({"kind": "llvm", **dict(tvm.target.Target.from_device("cpu").attrs)})


def hint(template: str, **values: object) -> CudaHint:
    """A configuration of a kernel family for an H200."""
    made = by_name()[template].config_type(template, H200, **values)
    assert isinstance(made, CudaHint)
    return made


def serial(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``func`` with its threads as serial loops."""

    def on_loop(loop: tirx.For) -> tirx.For:
        if int(loop.kind) != _THREAD_BINDING:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, _SERIAL, loop.body)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, on_loop), order="post"))


def run(func: tirx.PrimFunc, inputs: list[np.ndarray]) -> np.ndarray:
    """Return the output of ``func`` on the CPU; NaN, 77 or -77 where it does not store."""
    out = tvm.runtime.tensor(empty_of(func))
    plain = tirx.PrimFunc(func.params, func.body).with_attr("global_symbol", "main")
    kernel = tvm.compile(tvm.IRModule({"main": plain}), target=_CPU)
    kernel["main"](*(tvm.runtime.tensor(x) for x in inputs), out)
    return out.numpy()


def empty_of(func: tirx.PrimFunc) -> np.ndarray:
    """Return an output buffer of ``func`` before it runs, see :func:`run`."""
    result = func.params[-1]
    dtype = str(result.dtype)
    mark = np.nan if "float" in dtype else 77 if dtype.startswith("u") else -77
    return np.full([int(e) for e in result.shape], mark, dtype)


def inputs_of(func: tirx.PrimFunc, seed: int = 0) -> list[np.ndarray]:
    """Draw random inputs; int32 values are small, as valid indices."""
    rng = np.random.default_rng(seed)
    made = []
    for param in func.params[:-1]:
        shape, dtype = [int(e) for e in param.shape], str(param.dtype)
        if dtype == "uint32":
            made.append(rng.integers(0, 2**32, shape, dtype=np.uint64).astype(np.uint32))
        elif "int" in dtype:
            made.append(rng.integers(0, 5, shape).astype(dtype))
        else:
            made.append(rng.standard_normal(shape).astype(dtype))
    return made


def assert_same(func: tirx.PrimFunc, *hints: CudaHint) -> None:
    """Assert that ``func`` computes the same under every configuration, but for rounding.

    The kernel in which the most threads share a reduction is emulated, too: a schedule has no
    barriers and shuffles.
    """
    inputs = inputs_of(func)
    wanted = run(func, inputs).astype("float64")
    scale = max(float(np.abs(wanted).max()), 1e-3)
    narrow = any(str(p.dtype) == "float16" for p in func.params)

    def check(got: np.ndarray, one: CudaHint) -> None:
        close = (2e-2 if narrow else 2e-5) * scale
        np.testing.assert_allclose(got, wanted, rtol=0, atol=close, err_msg=str(one))

    for one in hints:
        check(run(serial(emit(func, one).mod["main"]), inputs), one)
    most = max(hints, key=_shares)
    check(emulated(func, most, inputs), most)


def _shares(one: CudaHint) -> int:
    """How many threads and thread blocks share a reduction."""
    shares: int = getattr(one, "reduce_threads", 1) * getattr(one, "split_k", 1)
    return shares


def emulated(func: tirx.PrimFunc, one: CudaHint, inputs: list[np.ndarray]) -> np.ndarray:
    """Return the output of an emulated kernel, as :func:`run` does."""
    return emulate.run(emit_kernel(func, one), inputs, [empty_of(func)], one.arch)[0]


def cuda_source(func: tirx.PrimFunc) -> str:
    """Return the CUDA source of a scheduled function."""
    built = tvm.tirx.build(tvm.IRModule({"main": func}), target=H200.to_tvm())

    def sources(module: object) -> list[str]:
        found = []
        for imported in module.imports:  # type: ignore[attr-defined]
            found += [imported.inspect_source(), *sources(imported)]
        return found

    return "\n".join(sources(built))
