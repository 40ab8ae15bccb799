"""What makes an operand, and what follows a product, drawn into copies of them."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir
from tvm.s_tir import ScheduleError
from tvm.s_tir.schedule import SBlockRV


def inline_producers(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Draw everything that makes what ``block`` copies into it."""
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
    """Draw everything that finishes what ``block`` copies out into it.

    Raises:
        ScheduleError: When something remains.
    """
    while consumers := sch.get_consumers(block):
        for consumer in consumers:
            inline_other_producers(sch, consumer, block)
        if not inline_forward(sch, consumers):
            sch.reverse_compute_inline(consumers[0])


def inline_forward(sch: s_tir.Schedule, blocks: Sequence[SBlockRV]) -> bool:
    """Draw each of ``blocks`` into what reads it, where that can be; whether any could."""
    done = False
    for block in blocks:
        try:
            sch.compute_inline(block)
            done = True
        except ScheduleError:
            continue
    return done


def inline_other_producers(sch: s_tir.Schedule, block: SBlockRV, kept: SBlockRV) -> None:
    """Draw what makes the other things that ``block`` reads, besides ``kept``, into it."""
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
    """Whether ``block`` reads, at some remove, what ``other`` makes."""
    return any(
        sch.get(producer).same_as(sch.get(other)) or _reads(sch, producer, other)
        for producer in sch.get_producers(block)
    )
