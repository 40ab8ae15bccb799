"""GPUs newer than Hopper are refused in one line, wherever a target is resolved."""

from __future__ import annotations

import types

import pytest
import tvm

from tvmopt.device import cuda, cuda_runtime
from tvmopt.device.gpus import GPUS, constants_words, gpu_of_target
from tvmopt.device.target import TargetSpec, resolve_target
from tvmopt.errors import ConfigError

NEWER = [
    "NVIDIA B200", "nvidia-b100", "GB200", "NVIDIA GB300", "nvidia/nvidia-b300",
    "NVIDIA GeForce RTX 5090", "NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA GB10",
    "sm_100", "sm_100a", "sm_103a", "sm_110", "sm_120", "compute_120f", "cuda -arch=sm_121",
    '{"kind": "cuda", "arch": "sm_100a"}', "rubin",
]  # fmt: skip


@pytest.mark.parametrize("text", NEWER)
def test_a_name_of_a_newer_gpu_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="there are no kernels; name another GPU, or") as caught:
        resolve_target(text)
    assert "\n" not in str(caught.value) and "Volta to Hopper" in str(caught.value)


@pytest.mark.parametrize("name", [*GPUS, "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-16GB"])
def test_known_gpus_are_resolved(name: str) -> None:
    assert resolve_target(name).gpu is not None


@pytest.mark.parametrize("name", ["znver4", "sapphirerapids", "graviton3"])
def test_cpus_are_no_gpus(name: str) -> None:
    assert resolve_target(name).gpu is None


@pytest.mark.parametrize("sm", [100, 103, 120, 61])
def test_a_stored_target_of_another_generation_is_refused(sm: int) -> None:
    stored = resolve_target("h200").to_dict()
    stored["gpu"]["sm"] = sm
    with pytest.raises(ConfigError, match=f"is of {sm // 10}.{sm % 10}"):
        TargetSpec.from_dict(stored)


def test_a_target_of_tvm_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"target sm_100a is of 10\.0 \(Blackwell\)"):
        gpu_of_target(types.SimpleNamespace(attrs={"arch": "sm_100a"}))
    assert gpu_of_target(GPUS["nvidia-a100"].to_tvm()).sm == 80


def _device(name: str, version: str) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        device_name=name, compute_version=version, multi_processor_count=100,
        max_clock_rate=1_500_000, l2_cache_size_bytes=0, total_global_memory=0,
    )  # fmt: skip


@pytest.fixture
def driver(monkeypatch):
    """Return a function that lets the driver show a GPU."""

    def shows(name: str, version: str) -> None:
        monkeypatch.setattr(cuda_runtime, "problem", lambda: "")
        monkeypatch.setattr(tvm.runtime, "cuda", lambda index: _device(name, version))

    return shows


def test_a_newer_gpu_of_this_machine_is_refused(driver) -> None:
    driver("NVIDIA B200", "10.0")
    with pytest.raises(ConfigError, match=r"NVIDIA B200 is of 10\.0 \(Blackwell\)"):
        cuda.probe()
    driver("NVIDIA Tesla P100", "6.0")
    with pytest.raises(ConfigError, match="older than Volta"):
        cuda.probe()


def test_constants_say_what_was_fitted(driver) -> None:
    assert constants_words(GPUS["nvidia-h200"]) == "fitted to sweeps of nvidia-h200"
    assert "from its data sheet" in constants_words(GPUS["nvidia-l4"])
    assert "fitted to nvidia-h200, not to nvidia-a100" in constants_words(GPUS["nvidia-a100"])
    driver("NVIDIA A2", "8.6")
    assert "of another GPU" in constants_words(cuda.probe())
