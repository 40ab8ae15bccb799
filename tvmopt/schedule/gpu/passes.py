"""How TVM must compile scheduled GPU functions."""

from __future__ import annotations

from typing import Any

#: Configuration of the passes, for ``tvm.transform.PassContext(config=...)``: copies that a
#: schedule calls asynchronous become cp.async; and indices stay whole, because TVM finds a lane's
#: part of a fragment by its index, which common subexpressions would hide (nvcc shares them anyhow).
PASS_CONFIG: dict[str, Any] = {"tirx.use_async_copy": 1, "tirx.disable_cse_tir": True}
