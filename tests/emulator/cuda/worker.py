"""``python -m tests.emulator.cuda.worker``: run kernels; one JSON request per line of input."""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import tvm

from tvmopt.device.cuda import CudaArch
from tvmopt.errors import ArtifactError, BuildError, TvmoptError
from tvmopt.kernels.cuda.build import build_kernels

from .arrays import read_array, write_array
from .library import Libraries

_KEPT = 8  # cached builds, because each kernel is called under several completion orders


def main() -> None:
    """Answer requests; output of kernels goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="tvmopt-emulate-") as folder:
        runner = _Runner(Libraries(Path(folder)))
        for line in sys.stdin:
            try:
                answer = runner.answer(json.loads(line))
            except TvmoptError as error:
                answer = {"kind": type(error).__name__, "error": str(error)}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


class _Runner:
    def __init__(self, libraries: Libraries) -> None:
        self._libraries = libraries
        self._built = functools.lru_cache(_KEPT)(self._build)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call the kernel of a request; results overwrite the files of the input arrays."""
        built = self._built(request["module"], json.dumps(request["arch"]))
        self._libraries.order(request["order"], request["seed"])
        arrays = [read_array(about) for about in request["arrays"]]
        sent = [tvm.runtime.tensor(array, tvm.cuda(0)) for array in arrays]
        firsts = {at: int(sent[at].data_ptr()) for at in request["constants"]}
        self._libraries.constants([(at, at + arrays[n].nbytes) for n, at in firsts.items()])
        try:
            built["main"](*sent)
        except Exception as error:  # the emulator or the host code
            raise ArtifactError(f"the emulated kernel fails: {_first_line(error)}") from error
        first = len(sent) - request["results"]
        places = [Path(about["path"]) for about in request["arrays"]]
        return {
            "arrays": [write_array(places[n], sent[n].numpy()) for n in range(first, len(sent))]
        }

    def _build(self, module: str, arch: str) -> Any:
        self._libraries.failure = None
        try:
            return build_kernels(
                {"main": tvm.ir.load_json(module)["main"]}, CudaArch(**json.loads(arch))
            )
        except Exception as error:  # TVM wraps errors of the library
            if self._libraries.failure is not None:
                raise self._libraries.failure from error
            raise BuildError(f"a kernel must compile, but: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


if __name__ == "__main__":
    main()
