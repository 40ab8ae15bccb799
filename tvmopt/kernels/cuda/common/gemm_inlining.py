"""Inline the producers of an operand and the epilogue of a GEMM into their copies."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir
from tvm.s_tir import ScheduleError
from tvm.s_tir.schedule import SBlockRV


def inline_producers(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Inline all producers of the copy ``block`` into it, repeatedly."""
    while True:
        done = 0
        for producer in sch.get_producers(block):
            try:
                sch.compute_inline(producer)
                done += 1
            except ScheduleError:
                continue
        if not done:
            return


def inline_consumers(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Inline the whole epilogue of the copy ``block`` into it.

    Raises:
        ScheduleError: When a consumer cannot be inlined.
    """
    while consumers := sch.get_consumers(block):
        for consumer in consumers:
            inline_other_producers(sch, consumer, block)
        if not inline_forward(sch, consumers):
            sch.reverse_compute_inline(consumers[0])


def inline_forward(sch: s_tir.Schedule, blocks: Sequence[SBlockRV]) -> bool:
    """Inline each of ``blocks`` into its consumers where possible; return whether any was."""
    done = False
    for block in blocks:
        try:
            sch.compute_inline(block)
            done = True
        except ScheduleError:
            continue
    return done


def inline_other_producers(sch: s_tir.Schedule, block: SBlockRV, kept: SBlockRV) -> None:
    """Inline all producers of ``block`` that do not depend on ``kept``."""
    while True:
        others = [
            producer
            for producer in sch.get_producers(block)
            if not sch.get(producer).same_as(sch.get(kept)) and not _reads(sch, producer, kept)
        ]
        if not others:
            return
        for producer in others:
            sch.compute_inline(producer)


def _reads(sch: s_tir.Schedule, block: SBlockRV, other: SBlockRV) -> bool:
    """Whether ``block`` depends, directly or not, on ``other``."""
    return any(
        sch.get(producer).same_as(sch.get(other)) or _reads(sch, producer, other)
        for producer in sch.get_producers(block)
    )
