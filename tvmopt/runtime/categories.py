"""Strings of a model's inputs and outputs as codes: a code is the place in a table of categories.

Compiled code computes with int64 codes. The table is part of the metadata
(:class:`tvmopt.runtime.metadata.TensorSpec`). A string that is in no table has the code
``UNKNOWN``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvmopt.errors import ConfigError

#: Code of a string that is in no table.
UNKNOWN = -1
#: Most bytes of all tables of a model, in UTF-8.
MOST_BYTES = 4_000_000


class Categories:
    """The table of one input or output.

    Args:
        name: Name of the input or output, for messages.
        table: The categories; each once.
    """

    def __init__(self, name: str, table: Sequence[str]) -> None:
        self._name, self._count = name, len(table)
        self._codes = {category: code for code, category in enumerate(table)}
        self._table = np.array([*table, ""])  # the last one is that of UNKNOWN

    def encode(self, array: np.ndarray) -> np.ndarray:
        """Return the int64 code of each value.

        Args:
            array: Strings, or objects, of which ``None`` and NaN are the strings "None" and "nan"
                as in ONNX Runtime; or codes.

        Raises:
            ConfigError: When the values are neither, or are codes of no category.
        """
        kind = array.dtype.kind
        if kind in "UOT":
            values = array.ravel().tolist()
            if kind == "O":
                values = [value if type(value) is str else str(value) for value in values]
            get = self._codes.get
            codes = np.fromiter((get(value, UNKNOWN) for value in values), "int64", len(values))
            return codes.reshape(array.shape)
        if kind not in "iu":
            raise ConfigError(
                f"input {self._name!r} must hold strings, or int64 codes of its categories, but "
                f"got {array.dtype}"
            )
        if array.size and not UNKNOWN <= int(array.min()) <= int(array.max()) < self._count:
            raise ConfigError(
                f"codes of input {self._name!r} must be from {UNKNOWN} (unknown) to "
                f"{self._count - 1}, but are from {array.min()} to {array.max()}"
            )
        return array.astype("int64")

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Return the string of each code; the empty one for ``UNKNOWN``."""
        return self._table[codes]


def encoded(name: str, table: Sequence[str], array: np.ndarray) -> np.ndarray:
    """Return the codes of one array, as :meth:`Categories.encode`."""
    return Categories(name, table).encode(array)
