"""Corrects the modelled ranking from what was measured, task after task.

The model's errors are systematic: it takes a cache for faster than it is, a branch for cheaper.
Trees learn the ratio of measured to modelled time, within each task, from the facts of a
configuration; the next choice multiplies the model by what they predict.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmopt.errors import TuneError
from tvmopt.kernels.ranked import FEATURES, Ranked

FILE = "reranker.npz"
_TREES, _LEAF = 40, 3
# Samples below which nothing is corrected.
_LEAST = 8
# Older samples than the latest so many are forgotten: growing trees must stay fast.
_MOST = 4000
# Of logarithms of seconds; what lies beyond is rounding.
_DECIMALS = 9


class Reranker:
    """Learns the ratio of measured to modelled time.

    Args:
        seed: Seed of the trees.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._features = np.zeros((0, FEATURES), np.float32)
        self._residuals = np.zeros(0)
        self._trees: Any = None

    def __len__(self) -> int:
        return len(self._residuals)

    def add(self, ranked: Sequence[Ranked[Any]], latency_us: Sequence[float]) -> None:
        """Add the measured configurations of one task.

        Args:
            ranked: What was measured.
            latency_us: Latency of each, in microseconds.
        """
        if len(ranked) < 3:
            return
        ratio = np.log(latency_us) - np.log([r.cycles for r in ranked])
        # A task's own scale is of no interest: every configuration of it has it. Not even in how
        # logarithms round, or trees would split ties otherwise.
        residuals = np.round(ratio - np.median(ratio), _DECIMALS)
        self._residuals = np.concatenate([self._residuals, residuals])[-_MOST:]
        rows = np.array([r.features for r in ranked], np.float32)
        self._features = np.vstack([self._features, rows])[-_MOST:]
        self._trees = None

    def order(self, ranked: Sequence[Ranked[Any]]) -> list[Ranked[Any]]:
        """``ranked`` by corrected time; in the model's order while too little is known."""
        if len(self) < _LEAST or len(ranked) < 2:
            return list(ranked)
        if self._trees is None:
            from sklearn.ensemble import ExtraTreesRegressor

            self._trees = ExtraTreesRegressor(
                n_estimators=_TREES,
                min_samples_leaf=_LEAF,
                max_features=0.5,
                random_state=self._seed,
                n_jobs=1,
            ).fit(self._features, self._residuals)
        rows = np.array([r.features for r in ranked], np.float32)
        corrected = np.log([r.cycles for r in ranked]) + self._trees.predict(rows)
        return [ranked[i] for i in np.argsort(corrected, kind="stable")]

    def save(self, directory: Path) -> None:
        """Write the samples beside a tuning database; trees are grown again from them."""
        partial = directory / f"partial-{FILE}"
        np.savez_compressed(partial, features=self._features, residuals=self._residuals)
        partial.replace(directory / FILE)  # a kill leaves the old file or the new one

    def load(self, directory: Path) -> None:
        """Add the samples that :meth:`save` wrote, when there are any.

        Raises:
            TuneError: When the file is something else.
        """
        path = directory / FILE
        if not path.exists():
            return
        try:
            with np.load(path, allow_pickle=False) as file:
                features, residuals = file["features"], file["residuals"]
        except Exception as error:
            raise TuneError(
                f"{path} must hold the samples of the re-ranker, but reading it gave: {error}; "
                "delete it to start without"
            ) from error
        if features.ndim != 2 or features.shape != (len(residuals), FEATURES):
            return  # written with other features; of no use here
        self._features = np.vstack([features.astype(np.float32), self._features])[-_MOST:]
        self._residuals = np.concatenate([residuals, self._residuals])[-_MOST:]
        self._trees = None
