"""Elementwise kernels and data movement are correct in every configuration."""

from __future__ import annotations

import pytest
from tvm import relax

from tests.kernels.cuda.functions import lowered, sums
from tests.kernels.cuda.serial import assert_same, cuda_source, hint
from tvmopt.kernels.cuda.finish import finish
from tvmopt.kernels.emit import NotApplicable, emit

op = relax.op
H, F = "float16", "float32"
HINTS = [
    hint(
        "gpu_elementwise",
        threads=threads,
        vector_elements=vector,
        vectors_per_thread=vectors,
        vectorize_compute=compute,
    )
    for threads, vector, vectors, compute in (
        (128, 8, 2, False), (128, 8, 1, True), (256, 4, 4, False), (64, 2, 8, True),
        (256, 1, 1, True),
    )
]  # fmt: skip
FUNCTIONS = {
    "add": lambda: lowered(op.add, ((33, 17, 16), H), ((33, 17, 16), H)),
    "prime": lambda: lowered(op.add, ((13, 17), F), ((13, 17), F)),
    "channels": lambda: lowered(op.add, ((3, 8, 7, 7), F), ((8, 1, 1), F)),
    "concat": lambda: lowered(lambda a, b: op.concat([a, b], 1), ((3, 5, 8), H), ((3, 4, 8), H)),
    "pad": lambda: lowered(lambda x: op.nn.pad(x, [0, 0, 1, 2, 0, 0]), ((3, 9, 16), H)),
    "cast": lambda: lowered(lambda x: op.astype(op.nn.relu(x), H), ((31, 24), F)),
    "slice": lambda: lowered(lambda x: op.strided_slice(x, [1], [3], [19]), ((7, 40), H)),
    "take": lambda: lowered(lambda w, i: op.take(w, i, 0), ((5, 24), H), ((9,), "int32")),
    "scalar": lambda: lowered(op.add, ((1,), F), ((1,), F)),
    "heads": lambda: lowered(
        lambda x: op.permute_dims(op.reshape(x, (4, 8, 3, 16)), [0, 2, 1, 3]), ((4, 8, 48), H)
    ),
    "transpose": lambda: lowered(lambda x: op.permute_dims(x, [1, 0]), ((24, 16), H)),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_computed_stays(name: str) -> None:
    assert_same(FUNCTIONS[name](), *HINTS)


def test_a_reduction_is_refused() -> None:
    with pytest.raises(NotApplicable, match="gpu_elementwise: it has a reduction"):
        emit(sums(1, ((8, 8), H)), HINTS[0])


@pytest.mark.parametrize("compute", [False, True])
def test_sixteen_bytes_are_moved_at_once(compute: bool) -> None:
    func = lowered(op.add, ((64, 512), H), ((64, 512), H))
    one = hint("gpu_elementwise", threads=128, vector_elements=8, vectorize_compute=compute)
    code = cuda_source(finish(emit(func, one).mod["main"], func))
    assert code.count("*(uint4*)(") >= 3  # two loads, one store


def test_vectors_that_tvm_does_not_compile_are_not_made() -> None:
    """Strided elements are loaded one by one; only the store is a vector of eight."""
    func = lowered(lambda x: op.permute_dims(x, [1, 0]), ((128, 64), H))
    one = hint("gpu_elementwise", threads=128, vector_elements=8, vectorize_compute=True)
    code = cuda_source(finish(emit(func, one).mod["main"], func))
    assert "make_uint4" not in code.partition("main_kernel(")[2]
    assert "*(uint4*)(T_transpose" in code


def test_a_reshape_leaves_no_registers_for_the_whole_input() -> None:
    one = hint("gpu_elementwise", threads=32, vector_elements=8, vectors_per_thread=2)
    func = FUNCTIONS["heads"]()
    code = cuda_source(finish(emit(func, one).mod["main"], func))
    assert "x0_local_ptr[8]" in code
