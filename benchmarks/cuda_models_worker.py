"""Worker of ``cuda_models``: compile, tune, check and time the contenders of one network."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from benchmarks.cuda_networks import NETWORKS, load_network, lower_network, to_relax
from benchmarks.cuda_timing import burst_timer, error_of, tensor_of
from tvmopt.build import build_library
from tvmopt.device.target import TargetSpec, resolve_target
from tvmopt.errors import last_line
from tvmopt.kernels.cuda.toolchain.modules import embed_cubins


class Contenders:
    """The contenders of one network, as callables.

    Args:
        name: Name of the network.
        topk: Configurations to measure per function.
        only: Contenders to compile.
        scratch: Directory for libraries.
    """

    def __init__(self, name: str, topk: int, only: list[str], scratch: Path) -> None:
        import torch

        self.torch = torch
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        self.network, self.topk, self.only, self.scratch = NETWORKS[name], topk, only, scratch
        self.target: TargetSpec = resolve_target("cuda")
        self.runs: dict[str, Callable[[], Any]] = {}
        self.timers: dict[str, Callable[[], float]] = {}
        self.problems: dict[str, str] = {}
        self.image = self.network.example().cuda()
        self.kernels = 0

    def prepare(self) -> dict[str, Any]:
        """Compile every contender that needs no tuning."""
        makers = {
            "dlight": self._dlight,
            "top-1": self._top1,
            "eager": self._eager,
            "compiled": self._compiled,
        }
        for contender, make in makers.items():
            if contender in self.only:
                self._try(contender, make)
        return {"kernels": self.kernels, "problems": self.problems}

    def tune(self) -> dict[str, Any]:
        """Measure configurations of every function; build a library with the best ones."""
        from tvmopt.tune.apply_and_build import ApplyFastTuning

        start = time.perf_counter()

        def tuned() -> Callable[[], Any]:
            passes = ApplyFastTuning(topk=self.topk, target=self.target)
            lowered = lower_network(self.network, self.target)
            return self._ours(passes(lowered), "tuned")  # type: ignore[operator]

        if "tuned" in self.only:
            self._try("tuned", tuned)
        return {"tune_s": time.perf_counter() - start, "problems": self.problems}

    def check(self) -> dict[str, Any]:
        """Compare the result of every contender with the reference."""
        expected = self._reference()
        errors = {}
        for contender in list(self.runs):
            try:
                got = tensor_of(self.torch, self.runs[contender]())
                self.torch.cuda.synchronize()
                errors[contender] = error_of(self.torch, got.float(), expected)
                self.timers[contender] = burst_timer(self.torch, self.runs[contender])
            except Exception as error:  # reported in the row; the other contenders go on
                self.problems[contender] = last_line(error)
        name, version = self.torch.cuda.get_device_name(), self.torch.__version__
        versions = {"GPU": name, "PyTorch": version}
        return {"errors": errors, "problems": self.problems, "versions": versions}

    def once(self, contender: str) -> dict[str, Any]:
        """Time one round of a contender; return milliseconds per call."""
        return {"ms": self.timers[contender]()}

    def _try(self, contender: str, make: Callable[[], Callable[[], Any]]) -> None:
        try:
            self.runs[contender] = make()
        except Exception as error:  # as above
            self.problems[contender] = last_line(error)

    # -- tvmopt ------------------------------------------------------------------------------

    def _top1(self) -> Callable[[], Any]:
        return self._ours(lower_network(self.network, self.target), "top-1")

    def _ours(self, lowered: tvm.IRModule, name: str) -> Callable[[], Any]:
        built = build_library(lowered, self.target, self.scratch / f"{name}.so")
        self.kernels = len(built.sources)
        return load_network(str(built.path), self.image)

    # -- peers -------------------------------------------------------------------------------

    def _dlight(self) -> Callable[[], Any]:
        mod, kind = to_relax(self.network), self.target.to_tvm()
        if self.network.dtype != "float32":
            mod = relax.transform.ToMixedPrecision(out_dtype="float32")(mod)
        assert self.target.gpu is not None
        with embed_cubins(self.target.gpu):
            executable = tvm.compile(mod, kind)
        path = self.scratch / "dlight.so"
        executable.export_library(str(path))
        return load_network(str(path), self.image)

    def _eager(self) -> Callable[[], Any]:
        module, image = self._torch()
        return lambda: module(image)

    def _compiled(self) -> Callable[[], Any]:
        module, image = self._torch()
        # Triton convolutions lost to cuDNN after minutes of autotuning; the rest is autotuned.
        inductor = importlib.import_module("torch._inductor.config")
        inductor.max_autotune_conv_backends = "ATEN"  # type: ignore[attr-defined]
        compiled = self.torch.compile(module, mode="max-autotune")
        for _ in range(3):
            compiled(image)
        self.torch.cuda.synchronize()
        return lambda: compiled(image)

    def _torch(self) -> tuple[Any, Any]:
        kind = getattr(self.torch, self.network.dtype)
        module, image = self.network.module().cuda().to(kind), self.image
        if image.is_floating_point():
            image = image.to(kind)
        if self.network.images:
            last = self.torch.channels_last
            module, image = module.to(memory_format=last), image.to(memory_format=last)
        return module, image

    def _reference(self) -> Any:
        with self.torch.no_grad():
            return self.network.module().cuda()(self.image).clone()


def main() -> None:
    """Run the step on each line of standard input; reply with one line of JSON."""
    name, topk, only = sys.argv[1:4]
    replies, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr  # libraries may print
    with tempfile.TemporaryDirectory(prefix="tvmopt-") as scratch:
        contenders = Contenders(name, int(topk), only.split(","), Path(scratch))
        for line in sys.stdin:
            try:
                step, *arguments = line.split()
                found = getattr(contenders, step)(*arguments)
            except Exception as error:  # the parent reports it in the row of the network
                found = {"problem": f"{line.strip()}: {last_line(error)}"}
            print(json.dumps(found), file=replies, flush=True)


if __name__ == "__main__":
    main()
