"""Enumerate configurations of the GEMV template, ranked by predicted cycles."""

from __future__ import annotations

import itertools
import math

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.stream_cost import StreamCost
from tvmopt.kernels.cuda.common.traffic import traffic
from tvmopt.kernels.cuda.gemv.config import GemvConfig
from tvmopt.kernels.cuda.gemv.schedule import NAME, GemvForm
from tvmopt.kernels.ranked import Ranked


def gemv_hints(form: GemvForm, arch: CudaArch) -> list[Ranked[GemvConfig]]:
    """Return the ``gpu_gemv`` configurations for ``form``, fastest predicted first."""
    facts = form.facts
    rows = math.prod(facts.axes[i].extent for i in form.rows)
    batch = math.prod(facts.axes[i].extent for i in form.batch)
    pieces = facts.axes[next(i for i in facts.reduction if form.weight.strides[i] == 1)].extent
    size = int(form.weight.buffer.dtype.itemsize)
    widest = math.gcd(pieces, 16 // size)
    moved = traffic(facts)
    costs = arch.costs
    convert = costs.convert_instructions
    weight_work = costs.unpack_instructions if form.packed > 1 else convert
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
        elements = vector * form.packed
        work = elements * (each * weight_work + each * batch)
        x = elements * batch * (convert + 2.0 / 8.0)
        per_step = each * costs.gemv_load_instructions + costs.gemv_step_instructions
        shuffles = each * batch * math.log2(share)
        stream = StreamCost(
            blocks=math.ceil(rows / (place * each)),
            threads=share * place,
            compulsory_bytes=moved,
            reread_bytes=rows / each * batch * pieces * form.packed * 2.0,
            in_flight_bytes=float(vector * size * each * unroll),
            instructions=costs.gemv_instructions
            + steps * (work + x + per_step)
            + shuffles * costs.shuffle_instructions,
            wait_cycles=shuffles * costs.gemv_shuffle_cycles
            + (costs.cross_warp_cycles * each * batch if share > arch.warp else 0.0),
            load_rounds=math.ceil(steps / unroll),
            registers=32 + (each + elements // 2) * batch + vector * size // 4 * each * unroll,
            instruction_cycles=costs.lone_warp_instruction_cycles
            + costs.gemv_dependence_cycles / batch,
            l2_share=costs.gemv_l2_resident_share,
        )
        ranked.append(Ranked(config, stream.cycles(arch), stream.parts(arch)))
    return sorted(ranked, key=lambda r: r.cycles)
