"""Rows, configurations and report of the attention benchmark; nothing is measured."""

from __future__ import annotations

import pytest

from benchmarks.attention_rows import rows
from benchmarks.cuda_attention import AttentionRow, chosen, configs_of
from tvmopt.kernels.cuda.hopper.attention.config import ATTENTION as HOPPER
from tvmopt.kernels.cuda.mma.attention.config import ATTENTION as MMA


def test_decode_rows() -> None:
    names = chosen("decode-*")
    assert len(names) == 12 and not set(names) & set(chosen("h64-*,h128-*"))
    p = rows()["decode-b8-kv8-4096"]
    assert (p.batch, p.heads, p.kv_heads, p.queries, p.keys, p.head_size) == (
        8,
        32,
        8,
        1,
        4096,
        128,
    )
    assert p.cache_bytes() == 2 * 8 * 8 * 4096 * 256


@pytest.mark.parametrize(("family", "wanted"), [("", HOPPER), (MMA, MMA), (HOPPER, HOPPER)])
def test_configurations_of_a_family(family: str, wanted: str) -> None:
    found = configs_of(rows()["h128-4096-full"], 2, [], family, "nvidia-h200")
    assert len(found) == 2 and found[0].template == wanted
    assert not family or found[1].template == wanted


def test_described_configurations() -> None:
    texts = ["row_warps=2:tile_keys=32", "stages=1"]  # the second does not fit
    *_, last = configs_of(rows()["decode-b1-kv8-1024"], 1, texts, "", "nvidia-a100")
    assert last.template == MMA and (last.row_warps, last.tile_keys) == (2, 32)


def test_a_row_of_one_query_reports_bytes_a_second() -> None:
    found = {"ms": {"ours0": 0.1, "flash": 0.2}, "errors": {"ours0": 1e-4, "flash": 2e-4}}
    row = AttentionRow("decode-b1-kv8-4096", {"ours0": {"family": MMA}}, found)
    cells = row.cells()
    rate = 2 * 8 * 4096 * 256 / 1e-4 / 1e9
    assert cells[4:7] == [f"{rate:.0f}", f"{rate:.0f}", "100.0"]
    assert cells[7:9] == ["2.000", "2.000"] and cells[-1] == f"family={MMA}"
