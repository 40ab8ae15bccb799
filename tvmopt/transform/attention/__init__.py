"""Find attention in a graph, and replace it by one function."""

from __future__ import annotations

from tvmopt.transform.attention.combine_projections import CombineProjections
from tvmopt.transform.attention.decompose import DecomposeAttention
from tvmopt.transform.attention.fuse import FuseAttention
from tvmopt.transform.attention.split_projection import SplitProjections
from tvmopt.transform.attention.views import ViewsBesideAttention

__all__ = [
    "CombineProjections",
    "DecomposeAttention",
    "FuseAttention",
    "SplitProjections",
    "ViewsBesideAttention",
]
