"""The gate before a library is opened: hash, TVM version, CPU, GPU, and what Linux must permit.

Opening a library runs its code.
"""

from __future__ import annotations

from pathlib import Path

from tvmopt import cuda_runtime, host
from tvmopt.digest import sha256_file
from tvmopt.errors import ArtifactError
from tvmopt.runtime.metadata import GOLDEN_FILE, LIBRARY_FILE, ModelMetadata
from tvmopt.versions import tvm_version

_AMX = ("tile", "tdp", "ldtilecfg")


def check_files(folder: Path, metadata: ModelMetadata) -> None:
    """Refuse a compiled model that is damaged or of another version of TVM.

    Raises:
        ArtifactError: Saying which check failed, the value got, and what to do.
    """
    _check_hash(folder / LIBRARY_FILE, metadata.library_sha256)
    _check_hash(folder / GOLDEN_FILE, metadata.golden_sha256)
    version = tvm_version()
    if version != metadata.tvm_version:
        raise ArtifactError(
            f"the model must run on the apache-tvm that built it, {metadata.tvm_version}, "
            f'but got {version}; run: pip install "apache-tvm=={metadata.tvm_version}", '
            "or build the model again"
        )


def check_bundle(folder: Path, metadata: ModelMetadata) -> None:
    """Refuse a compiled model that is damaged or cannot run here.

    Raises:
        ArtifactError: Saying which check failed, the value got, and what to do.
    """
    check_files(folder, metadata)
    if metadata.target["isa"] != host.isa():
        raise ArtifactError(
            f"the model was built for {metadata.target['isa']} ({metadata.target['mcpu']}), but "
            f"this machine is {host.isa()}; build it again with target=host on this machine"
        )
    missing = sorted(set(metadata.target["cpu_flags"]) - host.cpu_flags())
    if missing:
        raise ArtifactError(
            f"the model was built for {metadata.target['mcpu']}, and this CPU ({host.cpu_model()}) "
            f"lacks {', '.join(missing)}; build it again with target=host on this machine"
        )
    _request_amx(metadata)
    if metadata.gpu:
        _check_gpu(metadata.gpu, metadata.target["gpu"]["sm"])


def _check_gpu(name: str, sm: int) -> None:
    lacking = cuda_runtime.missing(sm)
    if not lacking:
        return
    import tvm

    if problem := cuda_runtime.problem():
        here = problem
    else:
        device = tvm.runtime.cuda(0)
        here = f"this machine's is {device.device_name}, of {device.compute_version}"
    cure = "" if cuda_runtime.CURE in here else "; build it again for what this machine has"
    raise ArtifactError(
        f"the model was built for {name}, a GPU of compute capability {sm // 10}.{sm % 10}, but "
        f"{here}{cure}"
    )


def _request_amx(metadata: ModelMetadata) -> None:
    granted = host.request_amx(metadata.target["cpu_flags"])
    used = [name for name in metadata.instructions if name.startswith(_AMX)]
    if used and not granted:
        raise ArtifactError(
            f"the model uses AMX ({', '.join(used)}), which Linux must permit to this process, but "
            "it refused; run it on Linux 5.16 or newer, outside a sandbox that blocks arch_prctl, "
            "or build it again for a target without AMX"
        )


def _check_hash(path: Path, expected: str) -> None:
    if not path.is_file():
        raise ArtifactError(
            f"a compiled model must hold {path.name}, but '{path.parent}' does not; "
            "fetch or build the model again"
        )
    actual = sha256_file(path)
    if actual != expected:
        raise ArtifactError(
            f"{path.name} must have sha256 {expected[:16]}..., but got {actual[:16]}...: the file "
            "was changed or damaged after it was built; fetch or build the model again"
        )
