"""Policies: choose the configurations of a function to measure on a device.

The names ``DefaultPolicy``, ``TensorCorePolicy`` and ``emit_config`` come from the fast dlight
proposal for CUDA (TVM community forum, 2024).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tvm import tirx

from tvmopt.device.arch import Arch
from tvmopt.kernels.backend import backend_of
from tvmopt.kernels.families import by_name, families_of, memory_bound
from tvmopt.kernels.family import Family
from tvmopt.kernels.hint import Hint
from tvmopt.kernels.rank import Ranking, rank
from tvmopt.kernels.ranked import Ranked, spread
from tvmopt.kernels.shared_packing import PACKED_TILE, prefer_packing
from tvmopt.kernels.workload import Workload


class Policy:
    """Ranks the configurations of one function.

    Args:
        func: A TensorIR function after FuseTIR.
        arch: The target device.
        families: The families to match; all families of the device by default.

    Attributes:
        reason: Why no family matches the function; None when one does.
    """

    def __init__(
        self,
        func: tirx.PrimFunc,
        arch: Arch,
        families: Sequence[Family[Any, Any]] = (),
    ) -> None:
        self.func = func
        self.arch = arch
        self._tile = (func.attrs or {}).get(PACKED_TILE)
        self._workload = Workload(func.without_attr(PACKED_TILE) if self._tile else func)
        self._families = families or families_of(arch)
        self._compares = self._families == families_of(arch)

    @functools.cached_property
    def ranking(self) -> Ranking:
        """Candidates, matches and refusals of all families."""
        found = rank(self._workload, self.arch, self._families, weighted=self._compares)
        return prefer_packing(found, str(self._tile)) if self._tile else found

    @property
    def ranked(self) -> list[Ranked[Any]]:
        """All configurations with predicted cycles, in ranked order."""
        return list(self.ranking.candidates)

    @property
    def reason(self) -> str | None:
        """Why no family matches the function; None when one does."""
        if self.ranking.candidates:
            return None
        backend = backend_of(self.arch)
        refusal = backend.refusal(self._workload)
        if refusal is not None:
            return refusal.reason
        reasons = [r.reason for r in self.ranking.refusals.values()]
        return "; ".join(reasons) if backend.lists_refusals and reasons else "no template fits"

    @property
    def cycles(self) -> float:
        """Predicted cycles of the top-1 candidate; without one, cycles to stream all arguments."""
        backend = backend_of(self.arch)
        if not self.ranking.candidates:
            return backend.argument_cycles(self._workload, self.arch)
        first = self.ranking.candidates[0]
        if family_of(first.hint).has_cost_model:
            return first.cycles
        return max(first.cycles, backend.untiled_cycles(self._workload, self.arch))

    @property
    def signature(self) -> str:
        """Key that is equal for functions that differ only in their epilogue; may be empty."""
        found = self.ranking.found
        return next((text for f in found if (text := f.family.signature(f.form))), "")

    def emit_config(self, topk: int) -> list[Any]:
        """Return the top-k configurations to measure; an empty list when no family matches.

        The first one is the top-1, which a build without measurement uses. Next come the best of
        each group near the top-1 (:func:`tvmopt.kernels.ranked.spread`). A share goes to other
        families whose candidates are predicted near the top-1, because the cost models of different
        families have different errors.

        Args:
            topk: Maximum number of configurations.
        """
        ranked = self.ranked
        near = self._near()
        shares = self._shares(topk, near) if self._compares else {}
        chosen = spread(ranked, topk - sum(shares.values()))
        for name, share in shares.items():
            of = [r for r in near if r.hint.template == name and r not in chosen]
            chosen += spread(of, share)
        if len(chosen) < topk:
            chosen += [r for r in ranked if r not in chosen][: topk - len(chosen)]
        return [r.hint for r in chosen]

    def _near(self) -> list[Ranked[Any]]:
        near = {f.family.name: f.family.near(f.form) for f in self.ranking.found}
        ranked = self.ranked
        return [r for r in ranked if r.cycles <= near[r.hint.template] * ranked[0].cycles]

    def _shares(self, topk: int, near: Sequence[Ranked[Any]]) -> dict[str, int]:
        """Return, for each family predicted near the top-1, how many of its candidates to try."""
        most = {f.family.name: f.family.share for f in self.ranking.found}
        if not any(most.values()):
            return {}
        names = list(dict.fromkeys(r.hint.template for r in near))
        share = max(1, topk // max(1, len(names)))
        shares, left = {}, topk - 1  # the top-1 is always among the top-k
        for name in names[1:]:
            shares[name] = min(most[name], share, left)
            left -= shares[name]
        return shares


def policy_of(func: tirx.PrimFunc, arch: Arch) -> Policy:
    """Return the policy over every family of the device."""
    return Policy(func, arch)


def DefaultPolicy(func: tirx.PrimFunc, arch: Arch) -> Policy:  # noqa: N802
    """Return the policy over the memory-bound families; on a CPU, the policy over all families.

    Args:
        func: A TensorIR function after FuseTIR.
        arch: The target device.

    Returns:
        The policy.
    """
    return Policy(func, arch, memory_bound(arch))


def family_of(hint: Hint) -> Family[Any, Any]:
    """Return the family that ``hint`` configures."""
    return by_name()[hint.template]
