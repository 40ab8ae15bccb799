"""A dtype for each layer, with the time and the accuracy loss that were predicted and measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from tvmopt.device import dtypes as dtype_table

#: Part of the predicted loss of a map that the next one loses at most.
LOSS_OF_NEXT = 0.8
#: Maps that the analysis measures, the fastest and what follows it: the last loses at most 0.13 of
#: the first one's predicted loss.
NUMBERED_MAPS = 10
# Least part of the predicted loss of a refused map that is asked of the one to build after it. The
# loss is an error power, and where many classes are close, a changed class takes an amplitude, its
# root: a quarter of the loss is then half of the drop.
_LEAST_PART = 0.25
#: Part of the time of a map that meets the bar, at which one that is undecided is taken.
WORTH_A_DOUBT = 0.9


@dataclasses.dataclass(frozen=True)
class DtypeMap:
    """Dtypes of all layers together.

    Attributes:
        layers: Indices of the layers that leave float32.
        dtypes: Their dtypes.
        predicted_s: Predicted seconds of the network's layers, with the changes of dtype between
            them. Only ratios of maps are meaningful.
        predicted_loss: Predicted mean of ``1 - cosine`` over batches: half of the errors of single
            layers, added.
        cosine: Smallest cosine with the float outputs over batches and outputs, as measured; as
            predicted where no sample was.
        agreement: Fraction of rows with the float model's top-1; None without class scores.
        drop: Accuracy drop as in evaluation.
        samples: Number of samples compared; 0 for the float model itself, and for a map that was
            not measured for want of time.
        holds: Whether the map meets the accuracy bar.
        mean_loss: Measured mean of ``1 - cosine`` over batches; None where not all were measured.
        loss_bound: Its 95% upper bound on other samples, see :mod:`tvmopt.quantize.loss_bound`.
        biases: Biases of layers for these dtypes, by node name, one value for each output channel,
            see :mod:`tvmopt.quantize.mixed_biases`. Empty: layers have the calibration's biases.
        is_assumed: Whether the map is assumed to meet the bar, from its predicted loss and a few
            samples, since time ended before a measurement showed it; ``holds`` is then false.
        is_undecided: Whether the map is likely to meet the bar, measured on all samples, which are
            too few to show it, as they are for all layers in a 16-bit float; or the map comes after
            one that evaluation refuses. ``holds`` is then false.
        samples_to_decide: Number of samples that would show it; 0 unless undecided and known.
        is_guess: Whether the map is faster than what can be chosen, and not known to miss the bar.
            The screen stage may take it, which measures on other samples.
    """

    layers: tuple[int, ...]
    dtypes: tuple[str, ...]
    predicted_s: float
    predicted_loss: float
    cosine: float
    agreement: float | None
    drop: float
    samples: int
    holds: bool
    mean_loss: float | None = None
    loss_bound: float | None = None
    biases: Mapping[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    is_assumed: bool = False
    is_undecided: bool = False
    samples_to_decide: int = 0
    is_guess: bool = False

    @property
    def can_be_chosen(self) -> bool:
        """Whether the map meets the bar, is assumed to, or is likely to."""
        return self.holds or self.is_assumed or self.is_undecided

    @property
    def by_layer(self) -> dict[int, str]:
        """Return the dtypes by layer index, without layers in float32."""
        return dict(zip(self.layers, self.dtypes, strict=True))


def fastest(maps: Sequence[DtypeMap]) -> DtypeMap:
    """Return the map with the least predicted time among those that meet the bar; one must.

    A map that is assumed to meet the bar counts like one that was shown to. One that is undecided
    is chosen where it takes at most nine tenths of the time: evaluation judges it once more.
    """
    shown = _least([m for m in maps if m.holds or m.is_assumed])
    undecided = [m for m in maps if m.is_undecided]
    if not undecided or _least(undecided).predicted_s > WORTH_A_DOUBT * shown.predicted_s:
        return shown
    return _least(undecided)


def in_order(maps: Sequence[DtypeMap]) -> list[DtypeMap]:
    """Return the maps to try one after the other, the fastest first and float32 last.

    Evaluation may refuse a map, since it sees other samples than the analysis. The next one is the
    fastest of at most a part of the predicted loss; or that was measured to meet the bar, if the
    refused one was not; or that has no int8 layer, if the refused one has: predicted losses of int8
    and of 16-bit floats do not compare well.
    """
    found, left = [fastest(maps)], list(maps)
    while found[-1].predicted_loss > 0:
        left = [m for m in left if m != found[-1]]
        following = [
            m for m in left if _may_follow(m, found[-1], LOSS_OF_NEXT) or _leaves_int8(m, found[-1])
        ]
        if not any(m.holds or m.is_assumed for m in following):
            break
        found.append(fastest(following))
    return found


def numbered(maps: Sequence[DtypeMap]) -> dict[int, DtypeMap]:
    """Return the maps by number, the fastest first: 0 is :func:`fastest`; guesses are below 0.

    From 0 on they are in :func:`in_order`.
    """
    chosen = in_order(maps)
    least_s = chosen[0].predicted_s
    guesses = sorted(
        (m for m in maps if m.is_guess and m.predicted_s < least_s), key=lambda m: m.predicted_s
    )
    return dict(enumerate([*guesses, *chosen], start=-len(guesses)))


def nth_map(maps: Sequence[DtypeMap], number: int) -> DtypeMap:
    """Return the map of a number of :func:`numbered`; beyond both ends, the map at the end."""
    found = numbered(maps)
    return found[min(max(number, min(found)), max(found))]


def number_after(
    maps: Sequence[DtypeMap], refused: int, drop: float, max_drop: float
) -> int | None:
    """Return the number of the first map that may follow a refused one; None after the last.

    Its predicted loss is as much smaller as the drop is to be, to which it is taken to be in
    proportion. The drop is taken to be the mean of the measured one and the limit, since maps are
    chosen to be near the limit, and few samples refuse by chance, too. Or the map was measured to
    meet the bar, and the refused one was not.

    Args:
        maps: The maps.
        refused: Number of the refused map, as of :func:`nth_map`.
        drop: Accuracy drop of the refused map; 0 where it was refused for another reason.
        max_drop: The limit.
    """
    before = nth_map(maps, refused)
    after = ((number, one) for number, one in numbered(maps).items() if number > refused)
    in_proportion = 2 * max_drop / (max_drop + drop) if drop > max_drop else 1.0
    part = min(LOSS_OF_NEXT, max(_LEAST_PART, in_proportion))
    return next((number for number, one in after if _may_follow(one, before, part)), None)


def _may_follow(one: DtypeMap, refused: DtypeMap, part: float) -> bool:
    is_smaller = one.predicted_loss <= part * refused.predicted_loss
    return is_smaller or _is_better_known(one, refused)


def _leaves_int8(one: DtypeMap, refused: DtypeMap) -> bool:
    return one.can_be_chosen and "int8" in refused.dtypes and "int8" not in one.dtypes


def _is_better_known(one: DtypeMap, refused: DtypeMap) -> bool:
    """Return whether samples showed that a map meets the bar, and did not show it of the other."""
    return one.holds and one.samples > 0 and not refused.holds


def _least(maps: Sequence[DtypeMap]) -> DtypeMap:
    return min(maps, key=lambda m: (m.predicted_s, len(m.layers)))


def whole_model_dtype(dtypes: Collection[str]) -> str:
    """Return the dtype that decides how a model of several dtypes is converted and checked.

    Args:
        dtypes: dtypes of its layers.

    Returns:
        ``"int8"`` where a layer has it, else the 16-bit float, of two bfloat16, else ``"float32"``.
    """
    return min(sorted(dtypes), key=lambda dtype: dtype_table.dtype(dtype).bits, default="float32")


def half_layers(by_layer: Mapping[int, str]) -> dict[int, str]:
    """Return the layers in a 16-bit float, by index."""
    return {index: dtype for index, dtype in by_layer.items() if dtype in dtype_table.HALF_FLOATS}
