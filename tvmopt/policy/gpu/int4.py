"""Configurations of the template that multiplies weights of four bits by tensor cores."""

from __future__ import annotations

import itertools
import math

from tvmopt.arch.cuda import CudaArch
from tvmopt.schedule.gpu.hint import GpuHint
from tvmopt.schedule.gpu.int4_form import STEP, Int4Form
from tvmopt.schedule.gpu.int4_mma import TILE

from .ranked import GpuRanked
from .stream import Stream

# Instructions of a warp for 16 rows of one step besides loads, and for what all rows share.
_TILE_WORK, _STEP_WORK = 90.0, 30.0


def int4_hints(form: Int4Form, arch: CudaArch) -> list[GpuRanked]:
    """Configurations of ``gpu_int4`` for ``form``, best first; none without tensor cores."""
    if arch.sm < 80:
        return []
    steps = math.ceil(form.depth / STEP)
    moved = form.rows * (form.depth / 2.0 + form.depth / form.group * 2.0)
    ranked = []
    for tiles, groups, share, stages in itertools.product(
        (1, 2), (1, 2, 4), (1, 2, 4, 8, 16), (1, 2, 4)
    ):
        block = TILE * tiles * groups
        threads = 32 * share * groups
        if not 64 <= threads <= 512 or share > steps or block * form.batch > threads:
            continue
        if tiles > 1 and form.rows <= TILE:
            continue
        each = math.ceil(steps / share)
        if stages > each:
            continue
        hint = GpuHint(
            "gpu_int4", arch, block=(block,), warp=(TILE * tiles,), reduce_threads=share,
            stages=stages,
        )  # fmt: skip
        fine = form.scales is not None and form.group < STEP
        work = _STEP_WORK + tiles * (_TILE_WORK + 32.0 * fine)
        stream = Stream(
            blocks=math.ceil(form.rows / block),
            threads=threads,
            moved=moved,
            again=form.rows / (TILE * tiles) * form.depth * 2.0 * form.batch,
            flight=16.0 * 2 * tiles * stages,
            instructions=60.0 + each * work,
            chain=100.0 + 10.0 * share,
            rounds=1.0 + math.ceil(each / stages) * 0.5,
            registers=40 + 2 * tiles * stages * 10,
            smem=4 * share * block * form.batch,
        )
        ranked.append(GpuRanked(hint, stream.cycles(arch), stream.parts(arch)))
    return sorted(ranked, key=lambda r: r.cycles)
