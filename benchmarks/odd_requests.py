"""Odd calls of a model of a table: what ``predict`` is given, and bodies of HTTP requests."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

_COUNT = 4
_NUMBERS: dict[str, Any] = {
    "None": None, "NaN": np.nan, "infinity": np.inf, "-infinity": -np.inf, "''": "",
    "'1.5'": "1.5", "'x'": "x", "1e300": 1e300, "True": True, "unseen 99": 99, "2.5": 2.5,
    "2.0": 2.0, "'2'": "2", "1e-320": 1e-320, "-0.0": -0.0,
}  # fmt: skip
_TEXTS: dict[str, Any] = {
    "unseen": "Oslo", "None": None, "NaN": np.nan, "''": "", "5": 5, "True": True, "'nan'": "nan",
    "'None'": "None", "infinity": np.inf, "with a blank": "Bern ",
}  # fmt: skip


def odd_calls(table: Any) -> dict[str, Any]:
    """Return what ``predict`` is given, by the name of the case.

    Args:
        table: Rows that the model takes.
    """
    import pandas

    rows = table[:_COUNT].reset_index(drop=True)
    rows = rows.astype({name: str for name in rows if not _is_number(rows[name])})
    names = list(rows)
    of_objects = rows.astype(object)
    cases: dict[str, Any] = {
        "a table": rows,
        "one row": rows[:1],
        "no row": rows[:0],
        "another index": rows.set_axis([f"row {at}" for at in range(len(rows))]),
        "equal index entries": rows.set_axis([7] * len(rows)),
        "columns in another order": rows[names[::-1]],
        "one more column": rows.assign(more=1.5),
        "two columns of a name": pandas.concat([rows, rows[names[:1]]], axis=1),
        "columns without names": rows.set_axis(range(len(names)), axis=1),
        "dtype object": of_objects,
        "float32": rows.astype({name: "float32" for name in names if _is_fraction(rows[name])}),
        "a dict of lists": rows.to_dict(orient="list"),
        "a dict of arrays": {name: rows[name].to_numpy() for name in names},
        "a dict of one row": rows.to_dict(orient="records")[0],
        "a list of dicts": rows.to_dict(orient="records"),
        "a list of lists": of_objects.to_numpy().tolist(),
        "a NumPy array": rows.to_numpy(),
        "a NumPy row": rows.to_numpy()[0],
        "too narrow": rows.to_numpy()[:, :-1],
        "a text": "row",
        "None": None,
        "booleans": rows.assign(
            **{name: rows[name] > 0 for name in names if _is_number(rows[name])}
        ),
        "pandas dtypes": rows.convert_dtypes(),
    }
    for name in names:
        cases[f"without {name!r}"] = rows.drop(columns=name)
    for name in names:
        for said, value in (_NUMBERS if _is_number(rows[name]) else _TEXTS).items():
            changed = of_objects[name].to_list()
            changed[1] = value
            values = pandas.Series(changed, dtype=object)
            cases[f"{name!r}: {said}"] = rows.assign(**{name: values})
            plain = values.infer_objects()
            if plain.dtype != object:
                cases[f"{name!r}: {said}, {plain.dtype}"] = rows.assign(**{name: plain})
    return cases


def odd_bodies(calls: dict[str, Any]) -> dict[str, bytes]:
    """Return bodies of HTTP requests, by the name of the case.

    Args:
        calls: What :func:`odd_calls` gave.
    """
    bodies: dict[str, Any] = {}
    for name, data in calls.items():
        if hasattr(data, "columns"):
            if ", " in name:  # another dtype of the same values
                continue
            split = {"columns": list(data.columns), "data": data.to_numpy(object).tolist()}
            bodies[f"{name}, split"] = {"dataframe_split": split}
            if len(set(data.columns)) == len(data.columns):
                records = data.astype(object).to_dict(orient="records")
                bodies[f"{name}, records"] = {"dataframe_records": records}
                bodies[f"{name}, inputs"] = {"inputs": data.astype(object).to_dict(orient="list")}
        elif isinstance(data, list):
            bodies[f"{name}, inputs"] = {"inputs": data}
            bodies[f"{name}, instances"] = {"instances": data}
    bodies["an empty object"] = {}
    bodies["no object"] = [1, 2]
    bodies["an unknown key"] = {"rows": []}
    whole = {name: json.dumps(body, default=_plain).encode() for name, body in bodies.items()}
    return {**whole, "no JSON": b"{", "nothing": b""}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


def _is_number(column: Any) -> bool:
    return getattr(column.dtype, "kind", "O") in "biuf"


def _is_fraction(column: Any) -> bool:
    return getattr(column.dtype, "kind", "O") == "f"
