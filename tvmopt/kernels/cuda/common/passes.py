"""How TVM must compile scheduled GPU functions."""

from __future__ import annotations

from typing import Any

#: Configuration of the passes, for ``tvm.transform.PassContext(config=...)``: copies that a
#: schedule calls asynchronous become cp.async, which TVM leaves out otherwise; and buffers keep
#: their types, because TVM finds no copy between one whose vectors have become elements and one
#: whose have not.
PASS_CONFIG: dict[str, Any] = {
    "tirx.use_async_copy": 1,
    "tirx.disable_storage_rewrite": True,
}
