"""Plain copies: which functions, the kernel's text, what is refused."""

from __future__ import annotations

import pytest
from tvm import relax

from benchmarks.cuda_rows import row
from tests.kernels.cuda.functions import lowered
from tests.kernels.cuda.serial import H200, cuda_source, hint
from tvmopt.kernels.cuda.elementwise.copy import prepare_copy
from tvmopt.kernels.emit import NotApplicable, emit, emit_kernel
from tvmopt.kernels.policies import policy_of

op = relax.op


def test_a_copy_is_vectors_of_16_bytes() -> None:
    form = prepare_copy(row("copy-128-8192-float16").func)
    assert form is not None and form.vectors == 128 * 8192 * 2 // 16
    assert prepare_copy(row("copy-3-16-int8").func).vectors == 3
    flat = lowered(lambda x: op.reshape(x, (6, 32)), ((3, 64), "float32"))
    assert prepare_copy(flat).vectors == 48


@pytest.mark.parametrize(
    ("build", "operands"),
    [
        (lambda x: op.permute_dims(x, [1, 0]), [((64, 64), "float16")]),
        (lambda x: op.strided_slice(x, [0], [0], [32]), [((64, 64), "float16")]),
        (lambda x: op.astype(x, "float32"), [((64, 64), "float16")]),
        (lambda x: op.nn.relu(x), [((64, 64), "float16")]),
        (lambda x: op.broadcast_to(x, (8, 64)), [((1, 64), "float16")]),
        (op.add, [((64, 64), "float16")] * 2),
        (lambda x: op.reshape(x, (21,)), [((3, 7), "float32")]),
    ],
)
def test_others_are_refused(build, operands) -> None:
    func = lowered(build, *operands)
    assert prepare_copy(func) is None
    with pytest.raises(NotApplicable, match="gpu_copy does not fit"):
        emit(func, hint("gpu_copy", thread=(128,), unroll=2))


def test_nothing_past_the_end_is_touched() -> None:
    func = row("copy-3-1000-float16").func  # 375 vectors, not a multiple of a block's 256
    code = cuda_source(emit_kernel(func, hint("gpu_copy", thread=(128,), unroll=2)))
    assert code.count("< 375)") == 2 and "if (0 ||" in code
    whole = row("copy-128-8192-float16").func
    code = cuda_source(emit_kernel(whole, hint("gpu_copy", thread=(128,), unroll=2)))
    assert "if (1 ||" in code


def test_small_copies_go_by_small_blocks() -> None:
    first = policy_of(row("copy-128-8192-float16").func, H200).emit_config(20)
    assert first[0] == hint("gpu_copy", thread=(128,), unroll=2)
    assert {h.template for h in first} == {"gpu_copy", "gpu_elementwise"}
