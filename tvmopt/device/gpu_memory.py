"""Recognise that a GPU's memory does not suffice, by what CUDA and TVM say."""

from __future__ import annotations

from collections.abc import Iterator

_SAID = ("out of memory", "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY")


def is_out_of_gpu_memory(error: BaseException) -> bool:
    """Return whether an error, or what caused it, says that GPU memory could not be allocated."""
    return any(
        "cuda" in text.lower() and any(said in text for said in _SAID)
        for text in map(str, _with_causes(error))
    )


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
