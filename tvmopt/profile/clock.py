"""Measure the clock of this machine's cores, which turns cycles of cost models into time."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from tvmopt.errors import BuildError
from tvmopt.link import compile_command
from tvmopt.scratch import scratch_folder

_LOOPS, _REPEATS = 200_000, 9  # about 1 ms each


def clock_hertz() -> float:
    """Return the clock of a core under load in hertz: the fastest of several measurements.

    Raises:
        EnvironmentSetupError, BuildError: When no C compiler is found, or it fails.
    """
    source = Path(__file__).parent / "clock.c"
    with scratch_folder() as folder:
        library = folder / "clock.so"
        command = [*compile_command(), "-shared", "-fPIC", "-o", str(library), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode:
            raise BuildError(f"{source.name} must compile, but the compiler says: {done.stderr}")
        measure = ctypes.CDLL(str(library)).tvmopt_clock_hertz
        measure.restype, measure.argtypes = ctypes.c_double, [ctypes.c_long]
        return max(float(measure(_LOOPS)) for _ in range(_REPEATS))
