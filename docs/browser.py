"""Headless Chromium by its debugging pipe: open a page, wait for it, click, take a picture."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_OPTIONS = "--headless=new --no-sandbox --hide-scrollbars --remote-debugging-pipe"
_WAIT_S = 120.0


class Browser:
    """A browser with one page.

    Chromium reads commands from file descriptor 3 and writes answers to 4, each message ending with
    a zero byte. Source: the Chrome DevTools Protocol, ``--remote-debugging-pipe``.

    Args:
        width: Width of the page in pixels.
        height: Its height.

    Raises:
        RuntimeError: When there is no browser.
    """

    def __init__(self, width: int, height: int) -> None:
        path = next(filter(None, map(shutil.which, _NAMES)), None)
        if path is None:
            raise RuntimeError(f"a browser must be on PATH ({', '.join(_NAMES)}), but none is")
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        command = f"exec '{path}' {_OPTIONS} --user-data-dir='{self._profile.name}'"
        self._process = subprocess.Popen(
            ["bash", "-c", f"{command} 3<&{theirs_in} 4>&{theirs_out}"],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._out, self._in = os.fdopen(ours_out, "wb", 0), os.fdopen(ours_in, "rb", 0)
        self._count, self._rest = 0, b""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self._ask("Page.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", **size)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._out.close()
        self._in.close()
        self._process.terminate()
        self._process.wait()
        self._profile.cleanup()

    def open(self, address: str) -> None:
        """Open an address; :meth:`wait` tells when it is ready."""
        self._ask("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self._ask("Runtime.evaluate", expression=script, returnByValue=True)
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true.

        Raises:
            RuntimeError: When it stays false for two minutes.
        """
        end = time.monotonic() + _WAIT_S
        while not self.run(condition):
            if time.monotonic() > end:
                raise RuntimeError(f"the page must fulfil {condition} within {_WAIT_S:.0f} s")
            time.sleep(0.3)

    def shoot(self, path: Path) -> None:
        """Write a picture of the page (PNG)."""
        path.write_bytes(base64.b64decode(self._ask("Page.captureScreenshot")["data"]))

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"the browser refused {method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = self._in.read(65536)
            if not part:
                raise RuntimeError("the browser must answer, but it has ended")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message
