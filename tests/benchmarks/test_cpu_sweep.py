"""The sweep of a CPU compiles candidates of a kernel, times them and ranks them again."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import tvm
from tvm import relax

from benchmarks import cpu_sweep
from tests.kernels.cpu import harness
from tvmopt.device.target import resolve_target


def test_the_candidates_of_a_kernel_are_timed_and_ranked(tmp_path: Path):
    target = resolve_target("host", 1)

    def build(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return relax.op.nn.relu(relax.op.matmul(x, w))

    mod = harness.lower(build, [((32, 64), "float32"), ((64, 48), "float32")])
    functions, described = cpu_sweep._candidates(mod, target.arch(), kernels=1, count=5)
    assert 2 <= len(functions) == len(described) <= 5
    assert len({candidate["hint"] for candidate in described}) == len(described)
    built = tvm.tirx.build(tvm.IRModule(functions), target=target.to_tvm(), pipeline="s_tir")
    built.export_library(str(tmp_path / "net.float32.so"))
    facts = {"module": tvm.ir.save_json(mod), "candidates": described}
    (tmp_path / "net.float32.json").write_text(json.dumps(facts))
    result = tmp_path / "times" / "result.json"
    result.parent.mkdir()
    cpu_sweep.run(tmp_path, result, seconds=60.0)
    [times] = json.loads(result.read_text())["us"].values()
    assert len(times) == len(described)
    assert all(us > 0 for us in times.values())
    args = argparse.Namespace(folder=tmp_path, json=result, target="host", threads=1)
    last = cpu_sweep.regrets(args).splitlines()[-1]
    name, regret, kernels = (cell.strip() for cell in last.strip("|").split("|"))
    assert name.startswith("float32 ")
    assert float(regret) >= 1
    assert kernels == "1"
