"""Tensor intrinsics: instructions that multiply and add several narrow numbers at once.

One family a file. An intrinsic is registered with TVM when a schedule first uses it.
"""

from .base import DotIntrinsic
from .choose import DOTS, dot_named, find_dot
from .mmla import MMLA, MatrixIntrinsic

__all__ = ["DOTS", "MMLA", "DotIntrinsic", "MatrixIntrinsic", "dot_named", "find_dot"]
