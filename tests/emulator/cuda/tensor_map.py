"""``cuTensorMapEncodeTiled`` as TVM calls it: encode the TMA descriptor that ``memory.h`` reads."""

from __future__ import annotations

import ctypes
from typing import Any

from tvmopt.errors import ConfigError

_MARK = 0x50414D54
_MOST = 5  # most dimensions of a tensor map
_BYTES = 128  # size of a tensor map
_LARGEST_BOX = 256


class _TensorMap(ctypes.Structure):
    _fields_ = (
        ("mark", ctypes.c_uint32),
        ("rank", ctypes.c_uint8),
        ("element", ctypes.c_uint8),
        ("swizzle", ctypes.c_uint8),
        ("fill", ctypes.c_uint8),
        ("base", ctypes.c_uint64),
        ("extents", ctypes.c_uint64 * _MOST),
        ("strides", ctypes.c_uint64 * (_MOST - 1)),
        ("box", ctypes.c_uint32 * _MOST),
        ("steps", ctypes.c_uint8 * _MOST),
    )


def encode_tiled(place: Any, dtype: str, rank: int, base: Any, *numbers: int) -> None:
    """Encode a tensor map at ``place``, with the checks of the CUDA driver.

    Args:
        place: Address of 128 bytes.
        dtype: The dtype of an element.
        rank: Number of dimensions.
        base: Address of the tensor.
        numbers: ``rank`` extents, ``rank - 1`` strides in bytes, ``rank`` box extents, ``rank``
            element strides; then interleave, swizzle, L2 promotion and out-of-bounds fill.

    Raises:
        ConfigError: When the driver would reject the arguments.
    """
    import tvm_ffi

    given = list(map(int, numbers))
    extents, given = given[:rank], given[rank:]
    strides, given = given[: rank - 1], given[rank - 1 :]
    box, given = given[:rank], given[rank:]
    steps, (interleave, swizzle, _, fill) = given[:rank], given[rank:]
    element = (tvm_ffi.dtype(dtype).bits + 7) // 8
    inner = box[0] * element
    rules = [
        (1 <= rank <= _MOST, f"a map must have 1 to {_MOST} dimensions", rank),
        (interleave == 0, "interleaved maps are not emulated", interleave),
        (fill == 0, "maps that fill with anything but zero are not emulated", fill),
        (_address(base) % 16 == 0, "the tensor must be aligned to 16 bytes", _address(base)),
        (all(s % 16 == 0 for s in strides), "strides must be multiples of 16 bytes", strides),
        (all(1 <= b <= _LARGEST_BOX for b in box), f"a box is of 1 to {_LARGEST_BOX}", box),
        (inner % 16 == 0, "a box's rows must be multiples of 16 bytes", inner),
        (not swizzle or inner <= 16 << swizzle, f"a box's rows must fit swizzle {swizzle}", inner),
        (all(1 <= s <= 8 for s in steps), "steps must be 1 to 8", steps),
        (all(e > 0 for e in extents), "extents must be positive", extents),
    ]
    for holds, rule, got in rules:
        if not holds:
            raise ConfigError(f"{rule}, but got {got}")
    made = _TensorMap(_MARK, rank, element, swizzle, fill, _address(base))
    lists = {"extents": extents, "strides": strides, "box": box, "steps": steps}
    for field, values in lists.items():
        getattr(made, field)[: len(values)] = values
    ctypes.memset(_address(place), 0, _BYTES)
    ctypes.memmove(_address(place), ctypes.byref(made), ctypes.sizeof(made))


def _address(pointer: Any) -> int:
    value = pointer.value if isinstance(pointer, ctypes.c_void_p) else int(pointer)
    return value or 0
