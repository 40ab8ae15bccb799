"""Request bodies that a server of model ``conv`` (``x``: float32 1x3x8x8) answers with 400."""

from __future__ import annotations

import gzip
import json

import numpy as np

from tests.tracking.serving import SHAPE, inputs_body

MARKER = "hunter2"  # part of every payload that a response could echo


def small_x(change=None) -> list:
    """Return a valid input as nested lists; ``change`` replaces its first value."""
    x = np.zeros(SHAPE).tolist()
    if change is not None:
        x[0][0][0][0] = change
    return x


_RAGGED = small_x()
_RAGGED[0][1][2] = [0.0] * 7

BAD_BODIES = {
    "empty": b"",
    "spaces": b"   ",
    "no JSON": b"hunter2 = {",
    "cut off": inputs_body(small_x())[:-5],
    "two values": inputs_body(small_x()) * 2,
    "list": b'["hunter2"]',
    "number": b"12",
    "null": b"null",
    "string": b'"hunter2"',
    "true": b"true",
    "no key": b"{}",
    "unknown key": inputs_body(small_x(), "hunter2"),
    "two keys": json.dumps({"inputs": small_x(), "instances": small_x()}).encode(),
    "key of language models": json.dumps({"messages": [{"content": MARKER}]}).encode(),
    "params": json.dumps({"inputs": small_x(), "params": {MARKER: 1}}).encode(),
    "deep lists": b"[" * 200_000,
    "deep lists of the right key": b'{"inputs": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "deep lists in a short body": b'{"inputs": ' + b"[" * 1400 + b"]" * 1400 + b"}",
    "deep objects": b'{"a":' * 30_000,
    "integer of 100,000 digits": b'{"inputs": ' + b"7" * 100_000 + b"}",
    "integer of 4,000 digits": inputs_body(small_x()).replace(b"0.0", b"7" * 4_000, 1),
    "integer beyond float64": inputs_body(small_x()).replace(b"0.0", b"1" + b"0" * 400, 1),
    "NaN": inputs_body(small_x(float("nan"))),
    "Infinity": inputs_body(small_x(float("inf"))),
    "-Infinity": inputs_body(small_x(float("-inf"))),
    "float32 overflow": inputs_body(small_x(1e39)),
    "float64 overflow": inputs_body(small_x()).replace(b"0.0", b"1e999", 1),
    "output overflow": inputs_body(np.full(SHAPE, 3e38).tolist()),
    "wrong name": inputs_body({MARKER: small_x()}),
    "no name": inputs_body({}),
    "extra input": inputs_body({"x": small_x(), MARKER: small_x()}),
    "inputs as number": inputs_body(7),
    "inputs as null": inputs_body(None),
    "inputs as text": inputs_body(MARKER),
    "wrong shape": inputs_body(np.zeros((1, 3, 8, 9)).tolist()),
    "batch of 2": inputs_body(np.zeros((2, 3, 8, 8)).tolist()),
    "dimension missing": inputs_body(np.zeros((3, 8, 8)).tolist()),
    "dimension too many": inputs_body(np.zeros((1, 3, 8, 8, 1)).tolist()),
    "empty list": inputs_body([]),
    "empty rows": inputs_body([[[], [], []]]),
    "ragged": inputs_body(_RAGGED),
    "value null": inputs_body({"x": small_x()}).replace(b"0.0", b"null", 1),
    "value text": inputs_body(small_x(MARKER)),
    "value numeric text": inputs_body(small_x("1.5")),
    "value bool": inputs_body(small_x(True)),
    "value object": inputs_body(small_x({MARKER: 1})),
    "value list": inputs_body(small_x([0.0])),
    "instances of two": inputs_body([{"x": small_x()[0]}, {"x": small_x()[0]}], "instances"),
    "instances mixed": inputs_body([{"x": small_x()[0]}, MARKER], "instances"),
    "instances of wrong name": inputs_body([{MARKER: small_x()[0]}], "instances"),
    "table split": inputs_body({"columns": [MARKER], "data": [[1]]}, "dataframe_split"),
    "table records": inputs_body([{f"{MARKER}{i}": i} for i in range(3000)], "dataframe_records"),
    "invalid UTF-8": b'{"inputs": "\xff\xfe hunter2"}',
    "UTF-16": json.dumps({"inputs": small_x()}).encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf" + inputs_body(small_x()),
    "NUL": b"\0" * 100,
    "gzip without a header": gzip.compress(inputs_body(small_x())),
}
