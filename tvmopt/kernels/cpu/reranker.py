"""Learned re-ranker: correct the cost model with measured latencies, task after task.

The cost model's errors are systematic: it overrates the bandwidth of a cache, it underrates the
cost of a branch. Extremely randomised trees learn the log ratio of measured latency to predicted
cycles within each task. The re-ranker multiplies predicted cycles by the learned ratio. It is not
the cost model of MetaSchedule (:mod:`tvmopt.tune.cost_model`), which predicts throughput from TVM's
features, without predicted cycles.
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
# Minimum number of samples; below it the cost model's order stays.
_LEAST = 8
# Number of latest samples kept, because the trees are trained again after every task.
_MOST = 4000
# Decimals kept of the log ratio; further decimals are rounding error.
_DECIMALS = 9


class Reranker:
    """Predicts the ratio of measured latency to predicted cycles.

    Args:
        seed: Random seed of the trees.
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
            ranked: The measured configurations.
            latency_us: Latency of each in microseconds.
        """
        if len(ranked) < 3:
            return
        ratio = np.log(latency_us) - np.log([r.cycles for r in ranked])
        # Subtract the task's scale, which all its configurations share. Round, because rounding
        # errors that depend on the scale would break ties in the trees.
        residuals = np.round(ratio - np.median(ratio), _DECIMALS)
        self._residuals = np.concatenate([self._residuals, residuals])[-_MOST:]
        rows = np.array([r.features for r in ranked], np.float32)
        self._features = np.vstack([self._features, rows])[-_MOST:]
        self._trees = None

    def order(self, ranked: Sequence[Ranked[Any]]) -> list[Ranked[Any]]:
        """Return ``ranked`` sorted by corrected cycles; unchanged while samples are too few."""
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
        """Write the training samples beside a tuning database; the trees are not stored."""
        partial = directory / f"partial-{FILE}"
        np.savez_compressed(partial, features=self._features, residuals=self._residuals)
        partial.replace(directory / FILE)  # atomic: a kill leaves the old file or the new one

    def load(self, directory: Path) -> None:
        """Add the samples that :meth:`save` wrote to ``directory``, if any.

        Raises:
            TuneError: When the file cannot be read as samples.
        """
        path = directory / FILE
        if not path.exists():
            return
        try:
            with np.load(path, allow_pickle=False) as file:
                features, residuals = file["features"], file["residuals"]
        except Exception as error:  # a damaged file makes the zip reader raise anything
            raise TuneError(
                f"{path} must hold the samples of the re-ranker, but reading it gave: {error}; "
                "delete it to start without"
            ) from error
        if features.ndim != 2 or features.shape != (len(residuals), FEATURES):
            return  # written with a different feature vector: unusable
        self._features = np.vstack([features.astype(np.float32), self._features])[-_MOST:]
        self._residuals = np.concatenate([residuals, self._residuals])[-_MOST:]
        self._trees = None
