"""Winograd transform matrices for F(2 x 2, 3 x 3) and F(4 x 4, 3 x 3), and the GEMM's annotation.

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (CVPR 2016),
arXiv:1509.09308.
"""

from __future__ import annotations

import dataclasses

#: Annotation of the GEMM block of a Winograd convolution; its value is the output tile size m.
WINOGRAD_ATTR = "tvmopt.winograd"


@dataclasses.dataclass(frozen=True)
class Matrices:
    """Transforms for output tile size m: ``Y = at @ ((g @ w @ g.T) * (bt @ d @ bt.T)) @ at.T``.

    Attributes:
        bt: Input transform, (m + 2, m + 2).
        g: Filter transform, (m + 2, 3).
        at: Output transform, (m, m + 2).
    """

    bt: tuple[tuple[float, ...], ...]
    g: tuple[tuple[float, ...], ...]
    at: tuple[tuple[float, ...], ...]


#: By output tile size m. Interpolation points 0, 1, -1 and infinity; for m = 4 also 2 and -2.
MATRICES = {
    2: Matrices(
        bt=((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
        g=((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
        at=((1, 1, 1, 0), (0, 1, -1, -1)),
    ),
    4: Matrices(
        bt=(
            (4, 0, -5, 0, 1, 0),
            (0, -4, -4, 1, 1, 0),
            (0, 4, -4, -1, 1, 0),
            (0, -2, -1, 2, 1, 0),
            (0, 2, -1, -2, 1, 0),
            (0, 4, 0, -5, 0, 1),
        ),
        g=(
            (1 / 4, 0, 0),
            (-1 / 6, -1 / 6, -1 / 6),
            (-1 / 6, 1 / 6, -1 / 6),
            (1 / 24, 1 / 12, 1 / 6),
            (1 / 24, -1 / 12, 1 / 6),
            (0, 0, 1),
        ),
        at=((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
    ),
}
