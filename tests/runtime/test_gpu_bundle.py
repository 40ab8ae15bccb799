"""A GPU model on a machine without that GPU: a one-line error, and the library stays closed."""

from __future__ import annotations

import json

import pytest
import tvm

from tvmopt.device import cuda_runtime
from tvmopt.device.target import resolve_target
from tvmopt.errors import ArtifactError
from tvmopt.runtime import ModelMetadata, load
from tvmopt.runtime.metadata import METADATA_FILE

A100 = resolve_target("nvidia-a100").to_dict()
BUILT = "the model was built for nvidia-a100, a GPU of compute capability 8.0, but "


@pytest.fixture
def for_a100(copied):
    """Return a bundle with metadata of a build for an A100."""
    path = copied / METADATA_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "target": A100}))
    return copied


def refusal(folder) -> str:
    with pytest.raises(ArtifactError) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_it_was_built_for_is_said(copied, for_a100) -> None:
    metadata = ModelMetadata.read(for_a100)
    assert (metadata.gpu, metadata.device) == ("nvidia-a100", "nvidia-a100")


def test_a_cpu_is_no_gpu(copied) -> None:
    metadata = ModelMetadata.read(copied)
    assert (metadata.gpu, metadata.device) == ("", metadata.target["mcpu"])


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ("there is no NVIDIA driver", f"{BUILT}there is no NVIDIA driver; build it again"),
        (f"x is not found; {cuda_runtime.CURE}", f"{BUILT}x is not found; {cuda_runtime.CURE}"),
    ],
)
@pytest.mark.usefixtures("never_opened")
def test_a_machine_without_gpu_refuses(for_a100, monkeypatch, problem: str, said: str) -> None:
    monkeypatch.setattr(cuda_runtime, "problem", lambda: problem)
    assert refusal(for_a100).startswith(said)


@pytest.mark.usefixtures("never_opened")
def test_another_gpu_refuses(for_a100, monkeypatch) -> None:
    class Other:
        device_name, compute_version = "NVIDIA H200", "9.0"

    monkeypatch.setattr(cuda_runtime, "problem", lambda: "")
    monkeypatch.setattr(tvm.runtime, "cuda", lambda number: Other())
    assert f"{BUILT}this machine's is NVIDIA H200, of 9.0; build it again" in refusal(for_a100)


@pytest.mark.parametrize("gpu", [{"name": "nvidia-a100"}, {"name": 5, "sm": 80}, "a100"])
def test_damaged_facts_of_a_gpu_are_refused(for_a100, gpu: object) -> None:
    path = for_a100 / METADATA_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "target": {**A100, "gpu": gpu}}))
    assert "it is damaged" in refusal(for_a100)
