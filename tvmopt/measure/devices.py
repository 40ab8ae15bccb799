"""List of the devices: host CPU, board behind RPC, CUDA GPU."""

from __future__ import annotations

from typing import Any

from tvmopt.device.arch import Arch
from tvmopt.device.cpu import CpuArch
from tvmopt.device.cuda import CudaArch
from tvmopt.measure.board_cpu import BoardCpu
from tvmopt.measure.cuda_gpu import CudaGpu
from tvmopt.measure.device import Device
from tvmopt.measure.host_cpu import HostCpu
from tvmopt.remote import Board

_BY_ARCH: dict[type[Arch], type[Device]] = {CpuArch: HostCpu, CudaArch: CudaGpu}
_BY_NAME: dict[str, tuple[type[Device], type[Arch]]] = {
    "HostCpu": (HostCpu, CpuArch),
    "BoardCpu": (BoardCpu, CpuArch),
    "CudaGpu": (CudaGpu, CudaArch),
}


def device_of(arch: Arch, board: Board | None = None) -> Device:
    """Return the board if there is one, otherwise this machine's device of type ``arch``."""
    return _BY_ARCH[type(arch)](arch) if board is None else BoardCpu(arch, board=board)


def device_from_dict(data: dict[str, Any]) -> Device:
    """Rebuild a device from the result of :meth:`Device.to_dict`, or from its JSON."""
    fields = dict(data)
    device, arch = _BY_NAME[fields.pop("type")]
    if fields.get("board"):
        fields["board"] = Board(**fields["board"])
    return device(**(fields | {"arch": arch.from_dict(fields["arch"])}))
