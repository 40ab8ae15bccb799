"""Cost model of MetaSchedule, trained on the candidates measured so far.

It is not the re-ranker of ``fast`` (:mod:`tvmopt.kernels.cpu.reranker`): MetaSchedule's candidates
have no predicted cycles to correct, and TVM defines their features.

TVM's feature extractor returns one vector per buffer store of a candidate. Trees need a fixed
length, so a candidate's vectors are reduced to sum, maximum and mean. The training target is the
task's best latency divided by the candidate's latency: 1 is the best, 0 is a failure, and tasks of
any size share one scale. Extremely randomised trees fit a few hundred samples in a fraction of a
second and need no hyperparameter tuning.

Sources: P. Geurts et al., "Extremely randomized trees" (2006); features and normalised throughput
from L. Zheng et al., "Ansor" (OSDI 2020).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmopt.tune.database import workload_hash

_TREES = 60


class RankingModel:
    """Score candidates by their feature vectors; independent of TVM.

    Args:
        seed: Seed of the trees and of the random scores.
        warmup: Number of samples below which scores are random.
    """

    def __init__(self, seed: int = 0, warmup: int = 24) -> None:
        self._seed = seed
        self._warmup = warmup
        self._random = np.random.default_rng(seed)
        self._features = np.zeros((0, 0), np.float32)
        self._groups: list[str] = []
        self._latency_us = np.zeros(0)
        self._trees: Any = None
        self._fitted = 0

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def is_trained(self) -> bool:
        """Whether there are enough samples for meaningful scores."""
        return len(self) >= self._warmup

    def add(self, group: str, features: np.ndarray, latency_us: np.ndarray) -> None:
        """Add measured candidates of one task.

        Args:
            group: The task.
            features: Shape ``(candidates, length)``.
            latency_us: Microseconds, shape ``(candidates,)``; infinite for a failure.
        """
        features = features.astype(np.float32)
        self._features = features if not len(self) else np.vstack([self._features, features])
        self._groups += [group] * len(features)
        self._latency_us = np.concatenate([self._latency_us, latency_us])

    def targets(self) -> np.ndarray:
        """Return the normalised throughput (0 to 1) of every sample; shape ``(samples,)``."""
        groups = np.array(self._groups)
        best = np.zeros(len(groups))
        for group in np.unique(groups):
            best[groups == group] = self._latency_us[groups == group].min()
        known = np.isfinite(self._latency_us)
        return np.divide(best, self._latency_us, out=np.zeros(len(groups)), where=known)

    def score(self, features: np.ndarray) -> np.ndarray:
        """Return scores of candidates, higher is faster; random until trained.

        Args:
            features: Shape ``(candidates, length)``.

        Returns:
            Shape ``(candidates,)``.
        """
        if not self.is_trained:
            return self._random.random(len(features))
        self._fit()
        return self._trees.predict(features.astype(np.float32))

    def _fit(self) -> None:
        if self._fitted == len(self):
            return
        from sklearn.ensemble import ExtraTreesRegressor

        self._trees = ExtraTreesRegressor(
            n_estimators=_TREES, max_features=0.5, random_state=self._seed, n_jobs=1
        )
        self._trees.fit(self._features, self.targets())
        self._fitted = len(self)


def reduce_stores(stores: np.ndarray) -> np.ndarray:
    """Return the feature vector of a candidate from the vectors of its buffer stores.

    Args:
        stores: Shape ``(stores, length)``.

    Returns:
        Shape ``(3 * length + 1,)``: sum, maximum and mean over the stores, and their count.
    """
    return np.concatenate(
        [stores.sum(axis=0), stores.max(axis=0), stores.mean(axis=0), [len(stores)]]
    ).astype(np.float32)


def make_cost_model(model: RankingModel) -> Any:
    """Wrap a :class:`RankingModel` as a MetaSchedule ``CostModel``."""
    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    extractor = ms.feature_extractor.PerStoreFeature()

    def features_of(context: Any, candidates: list[Any]) -> np.ndarray:
        found = extractor.extract_from(context, candidates)
        return np.stack([reduce_stores(tensor.numpy()) for tensor in found])

    @derived_object
    class TreeCostModel(ms.cost_model.PyCostModel):
        def update(self, context: Any, candidates: list[Any], results: list[Any]) -> None:
            if len(candidates):
                seconds = [
                    float(np.mean([float(s) for s in r.run_secs])) if r.run_secs else np.inf
                    for r in results
                ]
                model.add(
                    workload_hash(context.mod),
                    features_of(context, candidates),
                    np.array(seconds) * 1e6,
                )

        def predict(self, context: Any, candidates: list[Any]) -> np.ndarray:
            if not model.is_trained:  # skip the feature extraction
                return model.score(np.zeros((len(candidates), 1)))
            return model.score(features_of(context, candidates))

    return TreeCostModel()
