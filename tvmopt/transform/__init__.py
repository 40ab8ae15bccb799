"""Relax -> Relax: layers and skip sets, layouts, number formats, lowering. One pass a file."""

from tvmopt.transform.anchors import Anchor, anchors
from tvmopt.transform.count_layers import count_layers
from tvmopt.transform.skip import parse_skip_layers, resolve_skip_layers

__all__ = [
    "Anchor",
    "anchors",
    "count_layers",
    "parse_skip_layers",
    "resolve_skip_layers",
]
