"""GpuRanked: a GPU hint, and what the model expects of it."""

from __future__ import annotations

import dataclasses
import math

from tvmopt.kernels.cuda.hint import GpuHint
from tvmopt.kernels.ranked import FEATURES, Ranked


@dataclasses.dataclass(frozen=True)
class GpuRanked(Ranked):
    """A GPU hint, and what the model expects of it.

    Attributes:
        hint: The configuration.
        cycles: Cycles of the kernel, as modelled.
        facts: What the model knew; the re-ranker learns from it where the model errs.
    """

    hint: GpuHint  # type: ignore[assignment]

    @property
    def family(self) -> tuple[object, ...]:
        """What configurations share that the model errs on alike: template, vector, sharing."""
        hint = self.hint
        share = hint.reduce_threads > hint.arch.warp, hint.reduce_threads > 1
        return hint.template, hint.vector, share, hint.split_k > 1, hint.options

    @property
    def features(self) -> list[float]:
        """``FEATURES`` numbers: of the hint, of the model's parts, and which template it is."""
        hint = self.hint
        numbers = (
            float(len(hint.template)),
            math.log2(max(1, math.prod(hint.block))),
            math.log2(max(1, math.prod(hint.thread))),
            math.log2(max(1, math.prod(hint.warp))),
            math.log2(max(1, hint.reduce_threads)),
            math.log2(max(1, hint.vector)),
            math.log2(max(1, hint.split_k)),
            float(hint.rstep),
            float(hint.stages),
            *(float(value) for _, value in hint.options[:4]),
        )
        facts = [math.log2(max(f, 1e-6)) for f in self.facts]
        return ([*numbers] + [0.0] * (13 - len(numbers)) + facts + [0.0] * FEATURES)[:FEATURES]
