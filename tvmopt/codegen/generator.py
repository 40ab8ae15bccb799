"""Code generators: compile a scheduled module to a shared library, for CPUs and CUDA GPUs."""

from __future__ import annotations

import abc
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import tvm
from tvm import relax, tirx
from tvm.relax.backend.cpu_generic import pipeline as cpu_passes
from tvm.relax.backend.cuda import pipeline as cuda_passes
from tvm.target import Target

from tvmopt.codegen.entry import ahead_of_time
from tvmopt.codegen.entry_source import write_entry
from tvmopt.codegen.kernel_objects import write_kernels
from tvmopt.codegen.native_objects import write_objects
from tvmopt.codegen.network import NotStaticError
from tvmopt.codegen.timestamps import write_timestamps
from tvmopt.codegen.weights import Weights
from tvmopt.device.cuda import CudaArch
from tvmopt.device.llvm import pass_config
from tvmopt.device.target import TargetSpec
from tvmopt.errors import EnvironmentSetupError, last_line
from tvmopt.kernels.cuda.build import build_kernels
from tvmopt.kernels.cuda.common.passes import PASS_CONFIG
from tvmopt.kernels.cuda.pipeline import PIPELINE
from tvmopt.kernels.cuda.replace_kernels import replace_kernels
from tvmopt.kernels.cuda.toolchain.modules import embed_cubins
from tvmopt.link import compile_command, link_options
from tvmopt.runtime.executor import MAIN
from tvmopt.scratch import scratch_folder
from tvmopt.transform.cpu_pipeline import CPU_PIPELINE
from tvmopt.transform.horizontal_fusion import HorizontalFusion
from tvmopt.transform.lift_storage import LiftStorage
from tvmopt.transform.multi_output_fusion import MultiOutputFusion
from tvmopt.transform.prepack import prepack

_logger = logging.getLogger("tvmopt")


class CodeGenerator(abc.ABC):
    """Compiles scheduled modules for one kind of target.

    Attributes:
        spec: Target to compile for.
        target: ``spec`` as a target of TVM.
    """

    #: TVM module that lists the Relax passes after scheduling.
    _relax_passes: ClassVar[ModuleType]
    _tir_pipeline: ClassVar[str]

    def __init__(self, spec: TargetSpec, target: Target) -> None:
        self.spec, self.target = spec, target

    def compile(self, mod: tvm.IRModule, path: Path) -> bool:
        """Generate code for a scheduled module and link it to ``path``.

        Returns:
            Whether the library is native code; else TVM's virtual machine interprets it.

        Raises:
            EnvironmentSetupError: When no compiler can link for the target.
        """
        linker = link_options(self.spec.isa)
        with scratch_folder() as folder:
            with self._context():
                executable, files = self._executable(mod, folder)
            executable.export_library(str(path), addons=[str(file) for file in files], **linker)
        return bool(files)

    def _executable(self, mod: tvm.IRModule, folder: Path) -> tuple[Any, list[Path]]:
        """Return the compiled module, and the files that make it native, in ``folder``."""
        executable = tvm.compile(
            mod,
            self.target,
            relax_pipeline=self._relax_pipeline(),
            tir_pipeline=self._tir_pipeline,
        )
        return executable, []

    def replace_failing(
        self, before: tvm.IRModule, after: tvm.IRModule
    ) -> tuple[tvm.IRModule, dict[str, str]]:
        """Replace the kernels that do not compile.

        Args:
            before: The module before default scheduling.
            after: The module after it, which does not compile.

        Returns:
            The new module, and how each replaced kernel was replaced; empty where none was.
        """
        return after, {}

    @abc.abstractmethod
    def _context(self) -> contextlib.AbstractContextManager[object]:
        """Return the context of code generation."""

    def _own_passes(
        self, passes: list[tvm.transform.Pass], branches: bool
    ) -> list[tvm.transform.Pass]:
        """Return TVM's passes, adapted to this kind of target."""
        return passes

    def _relax_pipeline(self) -> tvm.transform.Pass:
        listed, target = self._relax_passes, self.target

        @tvm.transform.module_pass(opt_level=0, name="FinishPipeline")
        def finish(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
            with target:
                passes = [*listed.dataflow_lower_passes(target), *listed.finalize_passes(target)]
                branches = _has_branches(mod)
                if branches:
                    # The pass may share storage that only one branch allocates.
                    passes = [p for p in passes if p.info.name != "StaticPlanBlockMemory"]
                return tvm.transform.Sequential(self._own_passes(passes, branches))(mod)

        return finish


class CpuCodeGenerator(CodeGenerator):
    """Compiles for CPUs by LLVM."""

    _relax_passes = cpu_passes
    _tir_pipeline = CPU_PIPELINE

    def _context(self) -> contextlib.AbstractContextManager[object]:
        return tvm.transform.PassContext(opt_level=3, config=pass_config(self.spec.isa))

    def __init__(self, spec: TargetSpec, target: Target, native: bool, timed: bool) -> None:
        super().__init__(spec, target)
        self._native, self._timed = native, timed

    def _executable(self, mod: tvm.IRModule, folder: Path) -> tuple[Any, list[Path]]:
        """Compile ahead of time; a network of unknown shapes runs in TVM's virtual machine."""
        packed = prepack(tvm.transform.Sequential([MultiOutputFusion()])(mod))
        if not self._native:
            return super()._executable(packed, folder)
        with self.target:
            passes = self._relax_passes.dataflow_lower_passes(self.target)
            lowered = tvm.transform.Sequential(passes)(packed)
        weights = Weights()
        try:
            made = ahead_of_time(lowered, weights, timed=self._timed)
        except NotStaticError as reason:
            _logger.info("the network runs in TVM's virtual machine: %s", reason)
            return super()._executable(packed, folder)
        built = tvm.tirx.build(made.entry, self.target, pipeline=self._tir_pipeline)
        files = [weights.write(folder), write_entry(made.networks, self.spec.threads, folder)]
        if self._timed:
            files.append(write_timestamps(made.networks[MAIN], folder))
        files += write_objects(compile_command(self.spec.isa), folder)
        kernels = {kernel.symbol: kernel for kernel in made.separate.values()}
        files += write_kernels([*kernels.values()], self.target, self._tir_pipeline, folder)
        return tvm.runtime.Executable(built), files


class CudaCodeGenerator(CodeGenerator):
    """Compiles kernels by nvcc or NVRTC into cubins, host code by LLVM; needs no GPU."""

    _relax_passes = cuda_passes
    _tir_pipeline = PIPELINE

    def __init__(self, spec: TargetSpec, target: Target, arch: CudaArch) -> None:
        super().__init__(spec, target)
        self._arch = arch

    @contextlib.contextmanager
    def _context(self) -> Iterator[None]:
        config = tvm.transform.PassContext(opt_level=3, config=PASS_CONFIG)
        with embed_cubins(self._arch), config:
            yield

    def _executable(self, mod: tvm.IRModule, folder: Path) -> tuple[Any, list[Path]]:
        fused = tvm.transform.Sequential([HorizontalFusion()])(mod)
        return super()._executable(fused, folder)

    def _own_passes(
        self, passes: list[tvm.transform.Pass], branches: bool
    ) -> list[tvm.transform.Pass]:
        # Lowering already made views of reshapes; this pass rejects kernels without blocks.
        passes = [p for p in passes if p.info.name != "RewriteDataflowReshape"]
        if not branches:
            allocated = [p.info.name for p in passes].index("LowerAllocTensor")
            passes.insert(allocated + 1, LiftStorage())
        return passes

    def replace_failing(
        self, before: tvm.IRModule, after: tvm.IRModule
    ) -> tuple[tvm.IRModule, dict[str, str]]:
        """Replace the kernels that do not compile, as :class:`CodeGenerator` says."""
        return replace_kernels(before, after, self._arch, self._why_not_built)

    def _why_not_built(self, kernels: dict[str, tirx.PrimFunc]) -> str | None:
        """Return why ``kernels`` do not compile; None when they do."""
        try:
            with embed_cubins(self._arch):
                build_kernels(kernels, self._arch)
        except (EnvironmentSetupError, MemoryError):
            raise
        except Exception as error:  # of whatever compiler: one bad kernel is replaced
            return last_line(error)
        return None


def code_generator(
    spec: TargetSpec, target: Target, native: bool, *, timed: bool = False
) -> CodeGenerator:
    """Return the code generator for a target.

    Args:
        spec: Target to compile for.
        target: ``spec`` as a target of TVM.
        native: Whether a CPU network of static shapes becomes native code.
        timed: Whether native code takes the time around each step of ``main``.
    """
    if spec.gpu is None:
        return CpuCodeGenerator(spec, target, native, timed)
    return CudaCodeGenerator(spec, target, spec.gpu)


def _has_branches(mod: tvm.IRModule) -> bool:
    found: list[relax.If] = []

    def look(expr: relax.Expr) -> None:
        if isinstance(expr, relax.If):
            found.append(expr)

    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, look)
    return bool(found)
