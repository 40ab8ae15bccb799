"""CudaPolicy: any function and a GPU -> configurations of every template, the most promising first.

Products are tried by warpgroups, by warps and by plain threads; all else is bound by memory.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from tvm import tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.analysis import why_not_schedulable
from tvmopt.kernels.cuda.common.product import Product
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.hopper.configs import conv_hints, gemm_hints
from tvmopt.kernels.cuda.hopper.hints import CONV
from tvmopt.kernels.cuda.hopper.match import match
from tvmopt.kernels.cuda.hopper.problem import GemmProblem
from tvmopt.kernels.cuda.mma.configs import mma_hints
from tvmopt.kernels.cuda.simt.configs import simt_matmul_hints
from tvmopt.kernels.cuda.simt_policy import SimtPolicy
from tvmopt.kernels.cuda.tensor_core_policy import product_of
from tvmopt.kernels.ranked import Ranked, spread

# Times its model's cycles that a template takes where another's model is to be compared: warps
# reach two thirds of warpgroups' rate; a product with one vector is what gpu_gemv and
# gpu_int4 are for.
_WEIGHTS = {"mma_matmul": 1.5, "gpu_gemv": 0.75, "gpu_int4": 0.75}
# The same of a convolution, where warpgroups take it: loading its pixels is not in the model.
_IMAGES = 2.0
# Templates whose first is modelled this many times as long as the best are tried, too, and how many
# of their configurations.
_NEAR, _SHARE = 1.5, 4
# The same of products by warps of so few columns or so short sums: their model is furthest off
# there (1.4 to 1.8 times as fast as by warpgroups where it says 3 to 5 times as slow).
_NEAR_THIN, _THIN, _SHORT = 6.0, 16, 64
# Rows of a product up to which it may be one of a matrix and some vectors, bound by memory.
_FEW_ROWS = 8


class CudaPolicy:
    """Ranks the configurations of one function over all templates.

    Args:
        func: A TensorIR function, as FuseTIR leaves it.
        arch: The GPU.

    Attributes:
        reason: Why no template takes the function; None when one does.
    """

    def __init__(self, func: tirx.PrimFunc, arch: CudaArch) -> None:
        self.func = func
        self.arch = arch
        self.reason = None
        if not self.ranked:
            self.reason = why_not_schedulable(func, scalars=True) or "no template fits"

    def emit_config(self, topk: int) -> list[CudaHint]:
        """``topk`` configurations to measure; none when no template takes the function.

        The first is the most promising, which a build without measuring uses.
        """
        near = [r for r in self.ranked if r.cycles <= self._near(r) * self.ranked[0].cycles]
        templates = list(dict.fromkeys(r.hint.template for r in near))
        share = max(1, min(_SHARE, topk // max(1, len(templates))))
        chosen = spread(self.ranked, topk - share * (len(templates) - 1))
        for template in templates[1:]:  # models of different templates err differently
            of = [r for r in near if r.hint.template == template and r not in chosen]
            chosen += spread(of, share)
        left = [r for r in self.ranked if r not in chosen]
        chosen += left[: topk - len(chosen)]
        return [ranked.hint for ranked in chosen]  # type: ignore[misc]

    def _near(self, ranked: Ranked) -> float:
        """How many times as long as the best a configuration may be modelled to be tried."""
        if self._product is None or ranked.hint.template != "mma_matmul":
            return _NEAR
        _, _, columns, depth = self._product.extents
        return _NEAR_THIN if columns <= _THIN or depth <= _SHORT else _NEAR

    @functools.cached_property
    def _product(self) -> Product | None:
        return product_of(self.func)

    @property
    def cycles(self) -> float:
        """Modelled cycles of the first choice; 0 where there is none."""
        return self.ranked[0].cycles if self.ranked else 0.0

    @property
    def signature(self) -> str:
        """Functions that want the same configurations are not told apart yet."""
        return ""

    @functools.cached_property
    def ranked(self) -> list[Ranked]:
        """Every configuration that can run with its modelled cycles, the cheapest first."""
        found = [_weighed(r) for r in self._all() if math.isfinite(r.cycles)]
        return sorted(found, key=lambda r: r.cycles)

    def _all(self) -> list[Ranked]:
        found = self._hopper()
        of_images = bool(found) and found[0].hint.template == CONV
        if why_not_schedulable(self.func, scalars=True) is not None:
            return found
        product = self._product
        if product is None:
            return found or SimtPolicy(self.func, self.arch).ranked
        warps = mma_hints(product, self.arch)
        found += [_longer(r, _IMAGES) for r in warps] if of_images else warps
        _, rows, columns, _ = product.extents
        if not found or product.a.dtype == "float32":
            found += simt_matmul_hints(product, self.arch)
        if min(rows, columns) <= _FEW_ROWS or not found:
            found += SimtPolicy(self.func, self.arch).ranked
        return found

    def _hopper(self) -> list[Ranked]:
        if not self.arch.has_wgmma:
            return []
        found = match(self.func)
        if isinstance(found, str):
            return []
        hints = gemm_hints if isinstance(found.problem, GemmProblem) else conv_hints
        return list(hints(found.problem, self.arch))  # type: ignore[arg-type]


def _longer(ranked: Ranked, factor: float) -> Ranked:
    return dataclasses.replace(ranked, cycles=ranked.cycles * factor)


def _weighed(ranked: Ranked) -> Ranked:
    hint = ranked.hint
    if not hint.arch.has_wgmma or hint.template not in _WEIGHTS:
        return ranked
    return _longer(ranked, _WEIGHTS[hint.template])
