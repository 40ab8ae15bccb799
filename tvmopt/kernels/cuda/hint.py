"""A GpuHint: one configuration of a GPU template, complete enough to make its kernel from it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from tvmopt.device.cuda import CudaArch


@dataclasses.dataclass(frozen=True)
class GpuHint:
    """What a GPU template is told. A field that a template has no use for keeps its default.

    Attributes:
        template: Name of the template.
        arch: The GPU that the numbers were chosen for.
        block: Elements of each data-parallel axis that one thread block computes, the axes as the
            template normalises them (of a matrix product: rows and columns).
        thread: Threads along each of these axes.
        warp: Elements of each of these axes that one warp, or warpgroup, computes by tensor cores.
        rstep: Elements of the reduction that one step stages in shared memory; 0 is no staging.
        reduce_threads: Threads that share one reduction; 1 is none.
        vector: Elements that a thread moves at once.
        stages: Steps of the reduction that are in flight, 1 is no pipelining.
        async_copy: Whether they are copied to shared memory without waiting (cp.async).
        split_k: Parts that the reduction is divided into, each of a thread block of its own.
        raster: Rows of thread blocks that run side by side, so that what they share stays in L2;
            0 is the plain order.
        swap: Whether rows and columns change places, for few rows.
        cluster: Thread blocks that share what they load of the second operand.
        options: What only one template knows, by name.
    """

    template: str
    arch: CudaArch
    block: tuple[int, ...] = ()
    thread: tuple[int, ...] = ()
    warp: tuple[int, ...] = ()
    rstep: int = 0
    reduce_threads: int = 1
    vector: int = 1
    stages: int = 1
    async_copy: bool = False
    split_k: int = 1
    raster: int = 0
    swap: bool = False
    cluster: int = 1
    options: tuple[tuple[str, int], ...] = ()

    def option(self, name: str, default: int = 0) -> int:
        """What ``options`` says of ``name``."""
        return dict(self.options).get(name, default)

    @property
    def config_id(self) -> str:
        """Twelve hexadecimal digits that name this configuration."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; :meth:`from_dict` reverses it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GpuHint:
        """Rebuild a hint from :meth:`to_dict`, or from its JSON."""
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in data.items()
        }
        values["options"] = tuple((str(k), int(v)) for k, v in values.get("options", ()))
        return cls(**(values | {"arch": CudaArch(**values["arch"])}))

    def __str__(self) -> str:
        shown = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("template", "arch", "options")
            and getattr(self, field.name) != field.default
        }
        shown |= dict(self.options)
        return f"{self.template}({', '.join(f'{k}={v}' for k, v in shown.items())})"
