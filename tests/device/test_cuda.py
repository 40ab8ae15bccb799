"""Tests of GPU descriptors: look-up by name, consistent facts, round trip through TVM targets."""

from __future__ import annotations

import json

import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st

from tvmopt.device.cuda import CudaArch, probe
from tvmopt.device.gpus import GPUS, named_gpu
from tvmopt.device.target import TargetSpec, resolve_target
from tvmopt.errors import ConfigError
from tvmopt.kernels.cuda.mma.config import MmaConfig

has_gpu = bool(tvm.runtime.cuda(0).exist)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h200", "nvidia-h200"),
        ("nvidia/nvidia-h200", "nvidia-h200"),
        ("NVIDIA H200", "nvidia-h200"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100"),
        ("NVIDIA H100 PCIe", "nvidia-h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "nvidia-a100"),
        ("NVIDIA A100-SXM4-40GB", "nvidia-a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "nvidia-a100-40gb"),
        ("Tesla T4", "nvidia-t4"),
        ("Tesla V100-SXM2-16GB", "nvidia-v100"),
        ("NVIDIA GeForce RTX 3090", "nvidia-rtx-3090"),
        ("NVIDIA L40S", "nvidia-l40s"),
    ],
)
def test_a_gpu_is_found_by_what_it_is_called(text: str, name: str) -> None:
    found = named_gpu(text)
    assert found is not None and found.name == name


@pytest.mark.parametrize("text", ["", "host", "skylake-avx512", "graviton3", "nvidia", "h2000"])
def test_an_unknown_gpu_name_gives_none(text: str) -> None:
    assert named_gpu(text) is None


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_the_facts_of_a_gpu_agree(gpu: CudaArch) -> None:
    assert gpu.smem_bytes <= gpu.smem_sm_bytes <= 256 * 1024
    assert gpu.threads_block <= gpu.threads_sm <= gpu.blocks_sm * gpu.threads_block
    assert gpu.l2_gbs > gpu.dram_gbs
    assert gpu.fma("float16") >= gpu.fma("float32") > gpu.fma("float64")
    assert gpu.has_wgmma == (gpu.sm == 90) and gpu.has_async_copy == (gpu.sm >= 80)
    assert gpu.arch.endswith("a") == (gpu.sm >= 90)
    assert CudaArch(**json.loads(json.dumps(gpu.to_dict()))) == gpu


def test_an_h200_has_what_its_data_sheet_says() -> None:
    gpu = GPUS["nvidia-h200"]
    assert (gpu.arch, gpu.sms, gpu.smem_bytes) == ("sm_90a", 132, 232448)
    # 989 TFLOP/s in float16 and 67 in float32, within 10 %, because clocks differ.
    tera = 2e-3 * gpu.sms * gpu.clock_ghz
    assert tera * gpu.fma("float16") == pytest.approx(989, rel=0.1)
    assert tera * gpu.fma("int8") == pytest.approx(1979, rel=0.1)
    assert tera * gpu.fma("float32") == pytest.approx(67, rel=0.15)
    assert gpu.tensor_shape("float16") == (16, 8, 16) and gpu.tensor_shape("int8") == (16, 8, 32)
    assert gpu.tensor_shape("float32") is None


def test_tensor_cores_support_the_dtypes_of_their_generation() -> None:
    assert GPUS["nvidia-v100"].tensor_shape("float16") is None  # another instruction
    assert GPUS["nvidia-t4"].tensor_shape("bfloat16") is None
    assert GPUS["nvidia-a100"].tensor_shape("float8_e4m3fn") is None
    assert GPUS["nvidia-l4"].tensor_shape("float8_e4m3fn") == (16, 8, 32)


def test_a_gpu_becomes_a_target_of_tvm_and_back() -> None:
    spec = resolve_target("h200", 3)
    assert spec.gpu == GPUS["nvidia-h200"] and spec.label == spec.device == "nvidia-h200"
    target = spec.to_tvm()
    assert target.kind.name == "cuda" and str(target.attrs["arch"]) == "sm_90a"
    assert target.host.kind.name == "llvm" and str(target.host.attrs["mcpu"]) == spec.mcpu
    assert TargetSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_a_cpu_is_described_as_before() -> None:
    assert "gpu" not in resolve_target("host").to_dict()


@pytest.mark.skipif(has_gpu, reason="this machine has a GPU")
def test_without_a_gpu_one_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"to build for a GPU elsewhere name it: .*h200"):
        resolve_target("cuda")
    with pytest.raises(ConfigError, match="needs this machine's GPU, but there is no"):
        probe()
    assert resolve_target("h200").missing_on_host() == ("a GPU of compute capability 9.0",)


@pytest.mark.skipif(not has_gpu, reason="this machine has no GPU")
def test_the_gpu_of_this_machine_is_probed() -> None:
    arch = resolve_target("cuda").gpu
    assert arch is not None and arch.sms > 0
    assert not resolve_target("cuda").missing_on_host()


_sizes = st.tuples(st.integers(1, 512), st.integers(1, 512))


@given(tile=_sizes, warp_tile=_sizes, stages=st.integers(1, 8), split_k=st.integers(1, 64),
       async_copy=st.booleans())  # fmt: skip
def test_a_hint_is_its_json(tile, warp_tile, stages, split_k, async_copy) -> None:
    gpu = GPUS["nvidia-a100"]
    hint = MmaConfig("mma_matmul", gpu, tile, warp_tile, 32, stages, async_copy, split_k)
    data = hint.to_dict()
    assert "costs" not in data["arch"]
    again = MmaConfig.from_dict(json.loads(json.dumps(data)))
    assert again == hint and again.config_id == hint.config_id
    assert again.arch.costs == gpu.costs
