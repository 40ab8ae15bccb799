"""int4 GEMV with RMSNorm before and a gated epilogue behind: matching, results, refusals."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import te, tirx

from tests.emulator.cuda import ORDERS, run
from tests.kernels.cuda.functions import computed
from tests.kernels.cuda.serial import H200, cuda_source, hint
from tvmopt.device.gpus import GPUS
from tvmopt.errors import ArtifactError
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.cuda.int4.config import Int4Config
from tvmopt.kernels.cuda.int4.form import prepare_int4
from tvmopt.kernels.cuda.int4.space import int4_hints
from tvmopt.kernels.cuda.toolchain.dependent_launch import WAIT_STATEMENT
from tvmopt.kernels.emit import NotApplicable, emit_kernel
from tvmopt.kernels.policies import DefaultPolicy

EPSILON = 1e-2


@dataclasses.dataclass(frozen=True)
class Merged:
    """An int4 GEMV with RMSNorm (``norm``: dtype of its input) or a gate of ``columns`` each."""

    rows: int
    columns: int
    depth: int
    group: int
    norm: str | None = None
    weighted: bool = True
    gated: bool = False
    epsilon: float = EPSILON

    @property
    def weight_rows(self) -> int:
        return self.columns * (2 if self.gated else 1)

    def func(self) -> tirx.PrimFunc:
        """Return the TensorIR function; its weights are constants."""
        x = ((self.rows, self.depth), self.norm or "float16")
        words = ((self.weight_rows, self.depth // 8), "uint32")
        scales = ((self.weight_rows, self.depth // self.group), "float16")
        factors = [((self.depth,), "float32")] if self.norm and self.weighted else []
        func = computed(self._make, x, words, scales, *factors)
        return func.with_attr("layout_free_buffers", list(range(1, 3 + len(factors))))

    def _make(
        self, x: te.Tensor, words: te.Tensor, scales: te.Tensor, factors: Any = None
    ) -> te.Tensor:
        depth = tirx.IntImm("int64", self.depth)
        normed = x if self.norm is None else _normed(x, factors, self.epsilon)

        def weight(j: Any, r: Any) -> Any:
            value = (words[j, r // 8] >> (r % 8 * 4).astype("uint32")) & tirx.const(15, "uint32")
            return (value.astype("float16") - tirx.const(8, "float16")) * scales[j, r // self.group]

        unpacked = te.compute((words.shape[0], depth), weight, name="unpacked")
        r = te.reduce_axis((tirx.IntImm("int64", 0), depth), "r")

        def element(i: Any, j: Any) -> Any:
            return te.sum(normed[i, r].astype("float32") * unpacked[j, r].astype("float32"), axis=r)

        total = te.compute((x.shape[0], words.shape[0]), element, name="matmul")
        if not self.gated:
            return total
        far = tirx.IntImm("int64", self.columns)
        up = te.compute((x.shape[0], far), lambda i, j: total[i, j + far], name="up")
        gate = te.compute((x.shape[0], far), lambda i, j: total[i, j], name="gate")

        def gated(i: Any, j: Any) -> Any:
            return gate[i, j] * tirx.sigmoid(gate[i, j]) * up[i, j]

        return te.compute((x.shape[0], far), gated, name="gated")

    def problem(self) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the operands, and the float64 result of activations rounded to float16."""
        rng = np.random.default_rng(self.depth)
        x = rng.standard_normal((self.rows, self.depth)).astype(self.norm or "float16")
        words = rng.integers(0, 2**32, (self.weight_rows, self.depth // 8), np.uint32)
        scales = 2.0 ** rng.integers(-5, -2, (self.weight_rows, self.depth // self.group))
        factors = rng.uniform(0.5, 1.5, self.depth).astype("float32")
        wide = x.astype("float64")
        if self.norm is not None:
            wide = wide / np.sqrt((wide * wide).mean(1, keepdims=True) + self.epsilon)
            wide = (wide * (factors if self.weighted else 1)).astype("float16").astype("float64")
        nibbles = words[..., None] >> (4 * np.arange(8, dtype=np.uint32)) & 15
        weight = nibbles.astype("float64").reshape(self.weight_rows, self.depth) - 8
        y = wide @ (weight * np.repeat(scales, self.group, axis=1)).T
        if self.gated:
            gate, up = np.split(y, 2, axis=1)
            y = gate / (1 + np.exp(-gate)) * up
        operands = [x, words, scales.astype("float16")]
        return [*operands, *([factors] if self.norm and self.weighted else [])], y


def _normed(x: te.Tensor, factors: te.Tensor | None, epsilon: float) -> te.Tensor:
    k = te.reduce_axis((tirx.IntImm("int64", 0), x.shape[1]), "k")

    def wide(i: Any, j: Any) -> Any:
        return x[i, j].astype("float32")

    squares = te.compute(
        (x.shape[0],), lambda i: te.sum(wide(i, k) * wide(i, k), axis=k), name="squares"
    )

    def element(i: Any, j: Any) -> Any:
        mean = squares[i] / tirx.const(int(x.shape[1]), "float32")
        root = tirx.sqrt(mean + tirx.const(epsilon, "float32"))
        y = wide(i, j) / root
        return (y if factors is None else y * factors[j]).astype("float16")

    return te.compute(x.shape, element, name="normed")


def _hint(tile: int, warp: int, share: int, stages: int) -> Any:
    sizes = {"tile": tile, "warp_tile": warp, "reduce_warps": share, "stages": stages}
    return hint("gpu_int4", **sizes)


def _close(got: np.ndarray, want: np.ndarray) -> None:
    # A sum that is rounded another way moves an activation by one unit in its last place.
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=2e-4 * np.abs(want).max())


CASES = [
    (Merged(1, 40, 512, 128, gated=True), _hint(32, 16, 2, 2)),
    (Merged(1, 40, 512, 128, gated=True), _hint(32, 32, 4, 2)),
    (Merged(2, 70, 800, 32, gated=True), _hint(64, 32, 2, 3)),  # partial stages and blocks
    (Merged(1, 112, 512, 128, gated=True), _hint(224, 16, 1, 2)),
    (Merged(1, 16, 288, 288, gated=True), _hint(96, 16, 1, 2)),  # mostly rows of no part
    (Merged(1, 40, 1024, 128, "float16"), _hint(16, 16, 4, 3)),
    (Merged(1, 40, 1024, 128, "float32"), _hint(32, 16, 2, 2)),
    (Merged(3, 33, 800, 32, "float32", weighted=False), _hint(16, 16, 4, 2)),
    (Merged(8, 16, 2048, 64, "float16"), _hint(16, 16, 4, 2)),  # loads its activation twice
    (Merged(1, 16, 1024, 128, "float16", weighted=False, epsilon=0.0), _hint(16, 16, 4, 2)),
    (Merged(1, 40, 1024, 128, "float32", gated=True), _hint(96, 16, 2, 3)),
    (Merged(2, 24, 512, 32, "float16", gated=True), _hint(32, 32, 4, 2)),
]


@pytest.mark.sample(5)
@pytest.mark.parametrize(("merged", "config"), CASES)
@pytest.mark.parametrize("order", ORDERS)
def test_results(merged: Merged, config: Any, order: str) -> None:
    inputs, want = merged.problem()
    empty = np.full(want.shape, np.nan, "float32")
    [got] = run(emit_kernel(merged.func(), config), inputs, [empty], H200, order=order)
    _close(got, want)


@pytest.mark.parametrize("norm", ["float16", "float32", None])
@pytest.mark.parametrize("gated", [False, True])
def test_the_form(norm: str | None, gated: bool) -> None:
    merged = Merged(2, 48, 512, 128, norm, gated=gated)
    form = prepare_int4(merged.func())
    assert form is not None
    assert (form.parts, form.rows, form.columns) == (1 + gated, merged.weight_rows, 48)
    assert (form.norm is None) == (norm is None) and str(form.x.dtype) == (norm or "float16")
    if form.norm is not None:
        assert form.norm.weight is not None
        assert form.norm.epsilon == pytest.approx(EPSILON) and form.norm.x.same_as(form.x)


def test_rows_far_outside_of_float16_are_normalised() -> None:
    """The factor 1 / rms is applied before the activation is rounded."""
    merged = Merged(1, 16, 512, 128, "float32")
    inputs, _ = merged.problem()
    small = dataclasses.replace(merged, epsilon=1e-12)
    kernel = emit_kernel(small.func(), _hint(16, 16, 2, 2))
    empty = np.full((1, 16), np.nan, "float32")
    [want] = run(kernel, inputs, [empty.copy()], H200)
    scaled = [inputs[0] * np.float32(2.0**30), *inputs[1:]]
    [got] = run(kernel, scaled, [empty.copy()], H200)
    _close(got, want)


def test_what_is_not_finite_stays_so() -> None:
    merged = Merged(2, 16, 512, 128, "float32")
    inputs, want = merged.problem()
    inputs[0][0, 3] = np.inf
    empty = np.full(want.shape, 0.0, "float32")
    [got] = run(emit_kernel(merged.func(), _hint(16, 16, 2, 2)), inputs, [empty], H200)
    assert not np.isfinite(got[0]).any()
    _close(got[1], want[1])


def test_constants_are_loaded_before_the_wait_and_activations_after() -> None:
    merged = Merged(1, 40, 1024, 128, "float32", gated=True)
    kernel = emit_kernel(merged.func(), _hint(96, 16, 2, 3))
    code = build_kernels({"main": kernel}, H200).imports[0].inspect_source()
    body = code[code.index("void tvmopt_int4_") :]
    texts = ("load(d);", "tvmopt_eight(factor[u]", WAIT_STATEMENT, "tvmopt_eight(v, rows")
    places = [body.index(text) for text in texts]
    assert places == sorted(places) and code.count(WAIT_STATEMENT) == 1


@pytest.mark.parametrize("written", [1, 2, 3])
def test_factors_that_a_kernel_may_write_are_loaded_after_it(written: int) -> None:
    merged = Merged(1, 40, 1024, 128, "float32")
    free = [at for at in (1, 2, 3) if at != written]
    inputs, want = merged.problem()
    func = merged.func().with_attr("layout_free_buffers", free)
    kernel = emit_kernel(func, _hint(16, 16, 4, 3))
    code = build_kernels({"main": kernel}, H200).imports[0].inspect_source()
    start = code[code.index("__global__") :]
    assert start.index("tvmopt_wait_for_kernel_before();") < start.index("tvmopt_int4_")
    [got] = run(kernel, inputs, [np.full(want.shape, np.nan, "float32")], H200)
    _close(got, want)
    early = emit_kernel(merged.func(), _hint(16, 16, 4, 3)).with_attr("layout_free_buffers", free)
    with pytest.raises(ArtifactError, match="before the previous kernel has ended"):
        run(early, inputs, [np.full(want.shape, np.nan, "float32")], H200)


def test_gpus_without_dependent_launches_do_not_wait() -> None:
    merged = Merged(1, 40, 1024, 128, "float32", gated=True)
    a100 = dataclasses.replace(_hint(96, 16, 2, 3), arch=GPUS["nvidia-a100"])
    kernel = emit_kernel(merged.func(), a100)
    assert "griddepcontrol" not in cuda_source(kernel)
    inputs, want = merged.problem()
    [got] = run(kernel, inputs, [np.full(want.shape, np.nan, "float32")], GPUS["nvidia-a100"])
    _close(got, want)


def _changed(merged: Merged, kind: type, change: Any) -> tirx.PrimFunc:
    func = merged.func()
    return func.with_body(tvm_ffi.structural_map(func.body, (kind, change), order="post"))


def test_other_functions_are_refused() -> None:
    norm = Merged(1, 40, 512, 128, "float32")

    def other_count(value: tirx.FloatImm) -> tirx.FloatImm:
        return tirx.FloatImm("float32", 256.0) if float(value.value) == 512.0 else value

    def minus(value: tirx.Add) -> Any:
        is_epsilon = isinstance(value.b, tirx.FloatImm)
        return tirx.Sub(value.a, value.b) if is_epsilon else value

    def far(value: tirx.Add) -> Any:
        is_up = isinstance(value.b, tirx.IntImm) and int(value.b) == 48
        return tirx.Add(value.a, tirx.IntImm("int64", 47)) if is_up else value

    assert prepare_int4(norm.func()) is not None
    assert prepare_int4(_changed(norm, tirx.FloatImm, other_count)) is None
    assert prepare_int4(_changed(norm, tirx.Add, minus)) is None
    gated = Merged(1, 48, 512, 128, gated=True)
    assert prepare_int4(gated.func()) is not None
    assert prepare_int4(_changed(gated, tirx.Add, far)) is None
    # RMSNorm needs the activation in shared memory.
    assert prepare_int4(Merged(8, 16, 4096, 128).func()) is not None
    assert prepare_int4(Merged(8, 16, 4096, 128, "float16").func()) is None


@pytest.mark.parametrize(
    ("merged", "config"),
    [
        (Merged(1, 48, 512, 128, gated=True), _hint(48, 16, 2, 2)),  # an odd number of tiles
        (Merged(1, 64, 1024, 128, "float16"), _hint(128, 16, 4, 2)),  # 32 warps
    ],
)
def test_configurations_that_do_not_fit_are_refused(merged: Merged, config: Any) -> None:
    with pytest.raises(NotApplicable, match="gpu_int4: "):
        emit_kernel(merged.func(), config)


@pytest.mark.parametrize("merged", [Merged(1, 14336, 4096, 128, "float32", gated=True),
                                    Merged(1, 6144, 4096, 128, "float32"),
                                    Merged(8, 40, 1024, 32, "float16", gated=True)])  # fmt: skip
def test_every_ranked_configuration_makes_a_kernel(merged: Merged) -> None:
    form = prepare_int4(merged.func())
    assert form is not None
    ranked = int4_hints(form, H200)
    assert ranked
    for one in itertools.islice(ranked, 0, None, max(1, len(ranked) // 12)):
        emit_kernel(merged.func(), one.hint)


@pytest.mark.parametrize("name", ["nvidia-h100", "nvidia-h200"])
def test_the_first_choice_for_gate_and_up_fills_all_sms_once(name: str) -> None:
    func, gpu = Merged(1, 14336, 4096, 128, "float32", gated=True).func(), GPUS[name]
    config = DefaultPolicy(func, gpu).ranked[0].hint
    assert isinstance(config, Int4Config)
    assert 120 <= -(-14336 // (config.tile // 2)) <= gpu.sms
    assert config.tile // config.warp_tile * config.reduce_warps >= 8


def test_merged_work_takes_longer_than_the_gemv_alone() -> None:
    plain, normed = (
        int4_hints(prepare_int4(Merged(1, 6144, 4096, 128, norm).func()), H200)[0].cycles
        for norm in (None, "float32")
    )
    assert plain < normed < plain + 2000  # less than a kernel more
