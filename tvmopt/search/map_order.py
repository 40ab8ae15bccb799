"""Order of the maps of dtypes: the next one is for the case that all before it are inaccurate.

Each is predicted to be slower than the one before, and more accurate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tvmopt.choices import AUTO
from tvmopt.search.dimensions import DTYPE_MAP
from tvmopt.search.space import Variant
from tvmopt.search.tried import Tried


def following_maps(tried: Iterable[Tried], untried: Sequence[Variant]) -> list[Variant]:
    """Return variants with a dtype for each layer, where every one that was tried is inaccurate."""
    before = [t for t in tried if t.choice.variant.dtype == AUTO]
    if not before or not all(t.inaccurate for t in before):
        return []
    layouts = {t.choice.variant.layout for t in before}
    return [v for v in untried if v.dtype == AUTO and v.layout in layouts]


def without_later_maps(tried: Iterable[Tried], untried: Iterable[Variant]) -> list[Variant]:
    """Return the variants without the maps that follow an accurate one."""
    accurate = (t.choice.variant for t in tried if t.values and not t.inaccurate)
    first = min((_number(v) for v in accurate if v.dtype == AUTO), default=None)
    return [v for v in untried if v.dtype != AUTO or first is None or _number(v) <= first]


def _number(variant: Variant) -> int:
    """Return the number of a variant's map."""
    return int(dict(variant.further).get(DTYPE_MAP, 0))
