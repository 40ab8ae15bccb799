"""Split the CUDA source of a module by its kernels, so that several compilers work at once.

TVM generates one source for all kernels of a network: includes and device functions, prototypes of
the kernels, then their definitions. No definition refers to another kernel.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection

# A prototype of a kernel, and the first line of a definition. TVM writes each on one line.
_PROTOTYPE = re.compile(r'^extern "C" __global__ [^\n{]*;\n', re.MULTILINE)
_DEFINITION = re.compile(
    r'^extern "C" __global__ void (?:__launch_bounds__\([^)\n]*\) )?(\w+)\([^\n;]*\{$',
    re.MULTILINE,
)
# Kernels of a part: below, the device functions that each part repeats take longer than the
# kernels. And most parts of a module: each is loaded on its own.
_LEAST_KERNELS, _MOST_PARTS = 4, 16


@dataclasses.dataclass(frozen=True)
class SourcePart:
    """CUDA source of some kernels.

    Attributes:
        source: The source.
        kernels: Names of the kernels that it defines.
    """

    source: str
    kernels: tuple[str, ...]


def split_source(source: str, kernels: Collection[str]) -> list[SourcePart]:
    """Return the parts of a source, which depend on nothing but the source.

    Args:
        source: CUDA source that TVM generated.
        kernels: Names of its kernels.

    Returns:
        One to 16 parts. A source of unknown structure is one part.
    """
    count = min(_MOST_PARTS, len(kernels) // _LEAST_KERNELS)
    found = list(_DEFINITION.finditer(source))
    if count < 2 or sorted(m.group(1) for m in found) != sorted(kernels):
        return [SourcePart(source, tuple(kernels))]
    head = _PROTOTYPE.sub("", source[: found[0].start()])
    ends = [m.start() for m in found[1:]] + [len(source)]
    bodies = [source[m.start() : end] for m, end in zip(found, ends, strict=True)]
    names = [m.group(1) for m in found]
    # The kernels of a family lie side by side and take equally long: deal them out.
    return [
        SourcePart(head + "".join(bodies[n::count]), tuple(names[n::count])) for n in range(count)
    ]
