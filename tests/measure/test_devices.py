"""Devices survive the trip to a worker process."""

from __future__ import annotations

import json

import pytest

from tvmopt.device.gpus import GPUS
from tvmopt.device.target import resolve_target
from tvmopt.measure.devices import device_from_dict, device_of
from tvmopt.remote import Board

CPU = resolve_target("cortex-a76", 2).arch()


@pytest.mark.parametrize(
    ("device", "name"),
    [
        (device_of(CPU), "HostCpu"),
        (device_of(CPU, Board("127.0.0.1", 9190, "pi5")), "BoardCpu"),
        (device_of(GPUS["nvidia-h200"]), "CudaGpu"),
    ],
)
def test_a_device_is_rebuilt_from_json(device, name: str) -> None:
    data = json.loads(json.dumps(device.to_dict()))
    assert data["type"] == name
    assert device_from_dict(data) == device
