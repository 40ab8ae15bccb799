"""Tests of ``benchmarks.cuda_models`` without a GPU: rejected options, the table, the networks."""

from __future__ import annotations

import collections

import pytest
import tvm

from benchmarks.cuda_models import main, right, table

pytest.importorskip("torch", reason="PyTorch (the extra 'bench') is not installed")

ROW = {
    "name": "resnet18-128-float16",
    "ms": {"dlight": 24.0, "top-1": 1.2, "tuned": 1.0, "eager": 3.0},
    "errors": {"dlight": 1e-3, "top-1": 5e-4, "tuned": 6e-4, "eager": 7e-4},
    "kernels": 23,
    "tune_s": 41.0,
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "alexnet"], "networks must be of mlp-128-float32"),
        (["--contenders", "ours"], "contenders must be of dlight, top-1, tuned"),
    ],
)
def test_unknown_options_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.skipif(bool(tvm.runtime.cuda(0).exist), reason="this machine has a GPU")
def test_without_a_gpu_it_ends_with_one_line(capsys):
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2 and "needs this machine's GPU" in capsys.readouterr().err


def test_the_best_of_ours_is_compared():
    line = table([ROW]).splitlines()[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[0] == "resnet18-128-float16" and cells[6] == "24" and cells[7] == "3"
    assert cells[8] == "-" and cells[9] == "6.0e-04"


def test_a_row_that_is_wrong_or_missing_is_not_right():
    assert right(ROW)
    assert not right(ROW | {"errors": ROW["errors"] | {"top-1": 0.5}})
    assert not right(ROW | {"ms": {"dlight": 24.0}})


def test_networks_are_lowered_to_functions_that_the_policies_take():
    from benchmarks.cuda_networks import NETWORKS, lower_network
    from tvmopt.device.gpus import GPUS
    from tvmopt.kernels.first_choice import schedule_function

    arch = GPUS["nvidia-h200"]
    lowered = lower_network(NETWORKS["minilm-32-float16"], arch)
    functions = [f for _, f in lowered.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
    templates = [schedule_function(f, arch).rule for f in functions]
    assert len(templates) <= 16 and templates.count("hopper_gemm") >= 5
    assert templates.count("hopper_attention") == 1
    assert "gpu_fallback" not in templates


@pytest.mark.parametrize("name", ["vit_b16-8-float16", "bert_base-8-float16"])
def test_a_transformer_layer_is_nine_kernels(name):
    """LayerNorm, Q, K, V, attention, output; LayerNorm, up with GELU, down; no copies."""
    from benchmarks.cuda_networks import NETWORKS, lower_network
    from tvmopt.device.gpus import GPUS
    from tvmopt.kernels.first_choice import schedule_function

    arch = GPUS["nvidia-h200"]
    lowered = lower_network(NETWORKS[name], arch)
    calls = collections.Counter(
        binding.value.args[0].name_hint
        for block in lowered["main"].body.blocks
        for binding in block.bindings
        if getattr(binding.value.op, "name", "") == "relax.call_tir"
    )
    in_layers = {called: count for called, count in calls.items() if count >= 12}
    rules = collections.Counter()
    for called, count in in_layers.items():
        rules[schedule_function(lowered[called], arch).rule] += count
    assert rules == {"gpu_row_reduction": 25, "hopper_gemm": 72, "hopper_attention": 12}
    assert sum(calls.values()) - sum(in_layers.values()) <= 5
