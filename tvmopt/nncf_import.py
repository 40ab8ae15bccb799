"""Import NNCF without its telemetry: no network, and no file in the user's home.

Importing ``nncf`` creates a client of ``openvino_telemetry``, which writes ``~/intel`` and sends
events; NNCF's environment variables replace the client only after it exists. NNCF has a stub for
environments without that package, so we hide the package while NNCF is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

from tvmopt.errors import ConfigError

_TELEMETRY = "openvino_telemetry"
INSTALL = "pip install 'tvmopt[nncf]'"


def is_installed() -> bool:
    """Return whether NNCF is installed; imports nothing."""
    try:
        return importlib.util.find_spec("nncf") is not None
    except ValueError:  # a module without a spec, as tests put into sys.modules
        return False


def require_nncf(quantizer: str) -> None:
    """Check that NNCF is installed.

    Raises:
        ConfigError: When it is not.
    """
    if not is_installed():
        raise ConfigError(
            f"quantizer={quantizer} needs NNCF, which is not installed; install it with "
            f"{INSTALL}, or use quantizer=onnxruntime"
        )


@contextlib.contextmanager
def nncf_without_telemetry() -> Iterator[Any]:
    """Yield the module ``nncf``; in the block, its functions send no events."""
    hidden = _TELEMETRY not in sys.modules
    if hidden:
        sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # import raises ImportError
    try:
        nncf = importlib.import_module("nncf")
        decorator = importlib.import_module("nncf.telemetry.decorator")
        stub = importlib.import_module("nncf.telemetry.wrapper").NNCFTelemetryStub()
    finally:
        if hidden:
            del sys.modules[_TELEMETRY]
    # The user's program may have imported NNCF before, with telemetry.
    before, decorator.telemetry = decorator.telemetry, stub  # type: ignore[attr-defined]
    try:
        yield nncf
    finally:
        decorator.telemetry = before  # type: ignore[attr-defined]
