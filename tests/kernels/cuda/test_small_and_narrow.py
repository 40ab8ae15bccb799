"""Functions of one row, element or step, and dtypes without long CUDA vectors."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable

import pytest
from tvm import relax, tirx

from tests.kernels.cuda.functions import lowered
from tests.kernels.cuda.serial import H200, assert_same, hint
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.cuda.elementwise.config import CudaElementwiseConfig
from tvmopt.kernels.cuda.toolchain import modules
from tvmopt.kernels.emit import NotApplicable, emit, emit_kernel
from tvmopt.kernels.first_choice import schedule_function
from tvmopt.kernels.policies import policy_of

op, nn = relax.op, relax.op.nn
F, H, I8, BOOL = "float32", "float16", "int8", "bool"


def code(func: tirx.PrimFunc, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the CUDA source of the top-1 kernel of ``func``."""
    found: list[str] = []
    monkeypatch.setattr(modules, "compile_cubin", lambda s, _: (found.append(s), b"\x7fELF")[1])
    kernel = schedule_function(func, H200)
    assert kernel.hint is not None, kernel.rule
    with modules.embed_cubins(H200):
        build_kernels({"k": kernel.func}, H200)
    return "".join(found)


def norm(*shape: int, dtype: str = F) -> tirx.PrimFunc:
    width = shape[-1:]
    return lowered(
        lambda x, g, b: nn.layer_norm(x, g, b, -1), (shape, dtype), (width, dtype), (width, dtype)
    )


def softmax(*shape: int, axis: int = -1, dtype: str = F) -> tirx.PrimFunc:
    return lowered(lambda x: nn.softmax(x, axis), (shape, dtype))


SMALL: dict[str, Callable[[], tirx.PrimFunc]] = {
    "norm of a row": lambda: norm(1, 768),
    "norm of a row, 16 bits": lambda: norm(1, 1, 768, dtype=H),
    "norm of a vector": lambda: norm(64),
    "norm of a row of two": lambda: norm(1, 2),
    "softmax of a row": lambda: softmax(1, 1000),
    "softmax of a row of two": lambda: softmax(1, 2),
    "softmax of one": lambda: softmax(1),
    "softmax of columns of one": lambda: softmax(3, 1, axis=0),
    "softmax of rows of one": lambda: softmax(3, 1),
    "softmax of rows of a vector": lambda: softmax(33, 8, dtype=H),
    "softmax of rows of two": lambda: softmax(1000, 2),
    "softmax of short rows": lambda: softmax(2, 3, 5),
    "sum of one": lambda: lowered(lambda x: op.sum(x, 0), ((1, 1000), F)),
    "sum of one, narrow": lambda: lowered(lambda x: op.max(x, 0), ((1, 8), H)),
    "sum of columns of one": lambda: lowered(lambda x: op.mean(x, 1), ((1000, 1), F)),
    "argmax of one": lambda: lowered(lambda x: op.argmax(x, 0), ((1,), F)),
    "argmax of three": lambda: lowered(lambda x: op.argmax(x), ((3,), H)),
    "deviation of one": lambda: lowered(lambda x: op.std(x, 0), ((1,), F)),
    "one vector": lambda: lowered(nn.relu, ((8,), H)),
    "one element": lambda: lowered(nn.relu, ((1, 1), H)),
    "of two vectors": lambda: lowered(op.matmul, ((97,), F), ((97,), F)),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", SMALL)
def test_small_functions_get_one_kernel_that_is_right(name: str) -> None:
    func = SMALL[name]()
    policy = policy_of(func, H200)
    best = policy.ranked[0].hint
    assert best.template != "gpu_fallback"
    others = [one for one in policy.emit_config(20)[1::6] if one.template != "gpu_fallback"]
    for one in (best, *others):
        try:
            assert_same(func, one)
        except NotApplicable:
            assert one is not best


@pytest.mark.parametrize("template", ["gpu_elementwise", "gpu_window"])
def test_further_threads_store_nothing_of_a_single_vector(template: str) -> None:
    func = SMALL["one vector" if template == "gpu_elementwise" else "sum of one, narrow"]()
    assert_same(func, hint(template, threads=64, vector_elements=8))


def test_a_row_that_fits_one_vector_is_not_shared() -> None:
    one = hint("gpu_row_reduction", threads=4, reduce_threads=2, vector_elements=8)
    with pytest.raises(NotApplicable, match="work for one thread"):
        emit(softmax(33, 8, dtype=H), one)


def test_scalars_have_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    func = lowered(lambda x, y: op.add(x, y), ((), F), ((), F))
    assert "T_add_ptr[0] = (x0_ptr[0] + x1_ptr[0])" in code(func, monkeypatch)


NARROW: dict[str, Callable[[], tirx.PrimFunc]] = {
    "compared": lambda: lowered(op.less, ((8, 64), F), ((8, 64), F)),
    "compared bytes": lambda: lowered(op.less, ((2, 8, 64), I8), ((2, 1, 64), I8)),
    "chosen": lambda: lowered(op.where, ((8, 64), BOOL), ((8, 64), H), ((8, 64), H)),
    "copied conditions": lambda: lowered(
        lambda x, y: op.concat([x, y], 1), ((8, 64), BOOL), ((8, 32), BOOL)
    ),
    "cast to conditions": lambda: lowered(lambda x: op.astype(x, BOOL), ((31, 64), I8)),
    "leaky": lambda: lowered(nn.leakyrelu, ((64, 56, 56), H)),
    "16 bits of 8": lambda: lowered(lambda x: op.astype(x, "uint16"), ((31, 64), I8)),
    "8 bits of 16": lambda: lowered(lambda x: op.astype(x, I8), ((31, 64), "int16")),
    "masked product": lambda: lowered(
        lambda a, b, m: op.where(m, op.matmul(a, b), op.zeros((128, 128), F)),
        ((128, 64), F),
        ((64, 128), F),
        ((128, 128), BOOL),
    ),
    "compared product": lambda: lowered(
        lambda a, b: op.greater(op.matmul(a, b), relax.const(0.0, H)),
        ((128, 64), H),
        ((64, 128), H),
    ),
    "compared pool": lambda: lowered(
        lambda a: op.greater(nn.avg_pool2d(a, (3, 3), layout="NHWC"), relax.const(0.0, F)),
        ((2, 16, 16, 32), F),
    ),
    "compared rows": lambda: lowered(
        lambda a: op.greater(nn.softmax(a, -1), relax.const(0.1, F)), ((64, 64), F)
    ),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NARROW)
def test_types_without_long_vectors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emitted code stores no vectors of booleans to memory."""
    func = NARROW[name]()
    text = code(func, monkeypatch).partition('extern "C"')[2]
    conditions = set(re.findall(r"bool\s*\*?\s*(?:__restrict__\s*)?(\w+)", text))
    assert not {at for at in re.findall(r"\*\(\w+\*\)\((\w+)", text) if at in conditions}
    best = policy_of(func, H200).ranked[0].hint
    if best.template.startswith("gpu_") and best.template != "gpu_copy":
        assert_same(func, best)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [H, I8])
def test_no_long_vectors_from_places_apart(dtype: str) -> None:
    """Channel shuffle: TVM's code for gathered vectors of more than four does not compile."""

    def shuffled(x: relax.Expr) -> relax.Expr:
        parts = op.permute_dims(op.reshape(x, (1, 56, 56, 4, 28)), [0, 1, 2, 4, 3])
        return op.reshape(parts, (1, 56, 56, 112))

    func = lowered(shuffled, ((1, 56, 56, 112), dtype))
    one = hint(
        "gpu_elementwise",
        threads=128,
        vector_elements=8,
        vectorize_compute=True,
        vectors_per_thread=2,
    )
    assert_same(func, one)
    ranked = policy_of(func, H200).ranked
    elementwise = [r.hint for r in ranked if isinstance(r.hint, CudaElementwiseConfig)]
    assert not any(c.vectorize_compute for c in elementwise if c.vector_elements > 4)
    if shutil.which("nvcc") is not None:
        with modules.embed_cubins(H200):
            build_kernels({"k": emit_kernel(func, one)}, H200)


@pytest.mark.parametrize("dtype", [H, "bfloat16"])
@pytest.mark.parametrize("shape", [(7,), (64, 1000)])
def test_narrow_floats_are_rounded_as_wide_ones(
    dtype: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = code(lowered(op.round, (shape, dtype)), monkeypatch).partition('extern "C"')[2]
    assert "nearbyintf(" in text and "hnearbyint" not in text


def test_last_axes_of_one_step_are_left_out() -> None:
    func = lowered(
        lambda x, g, b: nn.instance_norm(x, g, b, 1, [2, 3]), ((1, 9, 1000, 1), F), *[((9,), F)] * 2
    )
    best = policy_of(func, H200).ranked[0].hint
    assert best.template == "gpu_row_reduction"
    assert_same(func, best)
