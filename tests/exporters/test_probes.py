"""Rows made of given ones: drawn by column, fractions with noise, categories without."""

from __future__ import annotations

import itertools

import numpy as np
import pandas

from tvmopt.exporters.probes import probes


def test_fractions_get_noise_and_categories_none():
    rows = pandas.DataFrame(
        {
            "fraction": [0.5, 1.25, np.nan],
            "rooms": [1.0, 2.0, 4.0],
            "count": np.array([3, 5, 9], np.int64),
            "city": ["Bern", "Graz", "Lyon"],
        }
    )
    made = next(probes(rows))
    assert list(made.dtypes) == list(rows.dtypes)
    assert len(made) > 100
    assert made["fraction"].nunique() > 100
    assert 0 < made["fraction"].isna().mean() < 1
    assert made["fraction"].min() > -1
    for name in ("rooms", "count", "city"):
        assert set(made[name]) == set(rows[name])
    assert len(made.drop_duplicates(["rooms", "count", "city"])) > len(rows)


def test_rows_of_an_array_are_the_same_every_time():
    rows = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    first, second = (np.concatenate(list(itertools.islice(probes(rows), 2))) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert first.dtype == np.float32
    assert len(np.unique(first[:, 0])) > 100


def test_a_column_of_missing_values_stays_missing():
    made = next(probes(pandas.DataFrame({"gone": [np.nan, np.nan]})))
    assert made["gone"].isna().all()
