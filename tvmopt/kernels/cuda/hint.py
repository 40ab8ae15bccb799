"""CudaHint: what the configurations of all CUDA kernel families share."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

from tvmopt.device.arch import Arch
from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.hint import Hint

# Names of the fields that describe the same size in every family, by place in the features.
_REDUCE = ("reduce_threads", "reduce_warps")
_SIZES = (
    ("tile", "rows_per_thread"), ("threads",), ("warp_tile",), _REDUCE, ("vector_elements",),
    ("split_k",),
)  # fmt: skip
_PIPELINE = ("k_block", "stages", "async_copy", "raster_group")
# Length of every feature vector.
_FEATURES = 13


@dataclasses.dataclass(frozen=True)
class CudaHint(Hint):
    """Configuration of a CUDA kernel. Each family has a subclass with the fields that it uses.

    The same names mean the same in all of them: ``tile`` of a thread block, ``warp_tile``,
    ``threads`` and the ``reduce_threads`` that share a reduction, ``vector_elements``, ``split_k``,
    ``k_block`` and ``stages`` of a pipeline. All other fields are options of the family.
    """

    arch_type: ClassVar[type[Arch]] = CudaArch

    arch: CudaArch

    @property
    def options(self) -> tuple[float, ...]:
        """Values of the fields that only this family has."""
        return tuple(float(getattr(self, name)) for name in _option_names(type(self)))

    @property
    def group(self) -> tuple[object, ...]:
        """Grouping key: vector length, how a reduction is shared, options."""
        share = self._size(*_REDUCE)
        shared = share > self.arch.warp, share > 1, self._size("split_k") > 1
        return self.template, self._size("vector_elements"), *shared, self.options

    @property
    def features(self) -> list[float]:
        """Feature vector for the learned ranker: sizes as log2, K block, stages, options."""
        numbers = [
            float(len(self.template)),
            *(math.log2(max(1, self._size(*names))) for names in _SIZES),
            float(getattr(self, "k_block", 0)),
            float(self._size("stages")),
        ]
        return [*numbers, *self.options, *([0.0] * _FEATURES)][:_FEATURES]

    def _size(self, *names: str) -> int:
        """Return the field that has one of ``names``, of several axes their product; 1 without."""
        size = next((getattr(self, name) for name in names if hasattr(self, name)), 1)
        return math.prod(size) if isinstance(size, tuple) else size


@functools.cache
def _option_names(config_type: type[CudaHint]) -> tuple[str, ...]:
    """Return the names of the fields that only ``config_type`` has."""
    shared = {"template", "arch", *_PIPELINE, *(name for names in _SIZES for name in names)}
    names = (field.name for field in dataclasses.fields(config_type))
    return tuple(name for name in names if name not in shared)
