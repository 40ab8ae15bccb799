"""Enumerate configurations of the GEMV template, ranked by predicted cycles."""

from __future__ import annotations

import itertools
import math

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.gemv.config import GemvConfig
from tvmopt.kernels.cuda.gemv.cost import GemvProblem, gemv_cost
from tvmopt.kernels.cuda.gemv.schedule import NAME, GemvForm
from tvmopt.kernels.ranked import Ranked


def gemv_hints(form: GemvForm, arch: CudaArch) -> list[Ranked[GemvConfig]]:
    """Return the ``gpu_gemv`` configurations for ``form``, fastest predicted first."""
    problem = GemvProblem.of(form)
    rows, batch, pieces, size = problem.rows, problem.batch, problem.pieces, problem.weight_bytes
    widest = math.gcd(pieces, 16 // size)
    ranked = []
    for vector, share, place, each, unroll in itertools.product(
        sorted({widest, max(1, widest // 2)}),
        (8, 16, 32, 64, 128, 256),
        (1, 2, 4, 8, 16),
        (1, 2, 4, 8),
        (1, 2, 4),
    ):
        if not 64 <= share * place <= 512 or rows % each or place * each > rows:
            continue
        steps = math.ceil(pieces / vector / share)
        if (pieces // vector < share and share > 8) or (unroll > 1 and steps % unroll):
            continue
        if vector * form.packed * each * batch * unroll > (128 if form.packed > 1 else 256):
            continue
        config = GemvConfig(NAME, arch, place, each, share, vector, unroll)
        ranked.append(gemv_cost(problem, config))
    return sorted(ranked, key=lambda r: r.cycles)
