"""TVM's CUDA modules on a CPU: kernels become C++ libraries, GPU memory becomes host memory."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tvmopt.errors import BuildError, EnvironmentSetupError, TvmoptError
from tvmopt.link import cxx_compiler

from .source import emulated
from .tensor_map import encode_tiled

_FOLDER = Path(__file__).parent
_MACHINE = ("machine.cc", "memory.cc", "tensor_cores.cc", "launch.cc")
_OPTIONS = ("-std=c++17", "-O1", "-w", "-fPIC", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE")


def _compiler() -> str:
    return shutil.which(cxx_compiler()) or cxx_compiler()


class Libraries:
    """The kernel libraries that this process has built; a process makes one instance.

    Args:
        folder: Folder for the compiled libraries.
    """

    def __init__(self, folder: Path) -> None:
        import tvm
        import tvm_ffi
        from tvm_ffi.registry import register_global_func

        if tvm.get_global_func("device_api.cuda", allow_missing=True) is not None:
            raise EnvironmentSetupError(
                "GPUs can only be emulated in a process that has not loaded TVM's CUDA runtime; "
                "call tests.emulator.cuda.run, which takes its own"
            )
        self._folder = folder
        self._include = Path(tvm_ffi.__file__).parent / "include"
        #: The error of a failed build; TVM keeps only its text.
        self.failure: TvmoptError | None = None
        self._header: Path | None = None  # of the precompiled header
        self._header = self._machine_folder()
        self._machine = ctypes.CDLL(str(self._header / "machine.so"), mode=ctypes.RTLD_GLOBAL)
        memory = tvm.get_global_func("device_api.cpu")
        register_global_func("device_api.cuda", lambda: memory())
        register_global_func("runtime.cuTensorMapEncodeTiled", encode_tiled)
        register_global_func("ffi.Module.create.cuda", self._create, override=True)

    def order(self, when: int, seed: int) -> None:
        """Complete asynchronous operations early (0), late (1) or at random times (2)."""
        self._machine.emu_set(when, seed)

    def constants(self, ends: Sequence[tuple[int, int]]) -> None:
        """Set the arrays that no kernel writes, by the addresses of their first byte and end."""
        flat = [address for pair in ends for address in pair]
        self._machine.emu_constants(len(ends), (ctypes.c_size_t * len(flat))(*flat))

    def _create(self, code: Any, form: str, functions: Mapping[str, Any], *_: Any) -> Any:
        try:
            return self._library(code, form, functions)
        except TvmoptError as error:
            self.failure = error
            raise

    def _library(self, code: Any, form: str, functions: Mapping[str, Any]) -> Any:
        import tvm_ffi

        if str(form) != "cuda":
            raise BuildError(f"only CUDA source can be emulated, but got {form}")
        source = code if isinstance(code, str) else bytes(code).decode()
        kernels = {
            str(name): [str(tag) for tag in about.launch_param_tags]
            for name, about in functions.items()
        }
        text = emulated(source, kernels)
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        library = self._folder / f"{name}.so"
        if not library.exists():
            path = self._folder / f"{name}.cc"
            path.write_text(text)
            self._compile(["-shared", str(path)], library)
        return tvm_ffi.load_module(str(library))

    def _machine_folder(self) -> Path:
        """Return a folder of the machine and the precompiled header of kernels.

        Compiling them takes ten seconds, so they are kept, by the hash of what they are made of,
        where Python keeps its bytecode. The lock lets one process compile what several need.
        """
        made_of = [*sorted(_FOLDER.glob("*.cc")), *sorted(_FOLDER.glob("*.h"))]
        told = subprocess.run([_compiler(), "--version"], capture_output=True, check=False).stdout
        told += repr((_OPTIONS, str(self._include))).encode()
        name = hashlib.sha256(
            b"".join([told, *(path.read_bytes() for path in made_of)])
        ).hexdigest()
        kept = _FOLDER / "__pycache__" / f"machine-{name[:16]}"
        kept.mkdir(parents=True, exist_ok=True)
        with (kept / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (kept / "done").exists():
                header = kept / "launch.h.gch"
                self._compile(["-x", "c++-header", str(_FOLDER / "launch.h")], header)
                sources = [str(_FOLDER / name) for name in _MACHINE]
                self._compile(["-shared", *sources], kept / "machine.so")
                (kept / "done").touch()
        return kept

    def _compile(self, what: list[str], result: Path) -> None:
        places = [f"-I{path}" for path in (self._header, _FOLDER, self._include) if path]
        command = [_compiler(), *_OPTIONS, *places, *what, "-o", str(result)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            raise BuildError(f"a kernel cannot be emulated: {' '.join(errors[:3])[:400]}")
