"""TVM pass configuration for scheduled GPU functions."""

from __future__ import annotations

from typing import Any

#: For ``tvm.transform.PassContext(config=...)``. Copies that a schedule marks asynchronous become
#: cp.async, which TVM does not do by default. Storage rewrite is off: it retypes buffers to
#: vectors, and TVM then finds no copy between a retyped buffer and one that is not.
PASS_CONFIG: dict[str, Any] = {
    "tirx.use_async_copy": 1,
    "tirx.disable_storage_rewrite": True,
}
