"""Find out whether the last axis of a model's first output is one of classes.

Two models then agree on a row when their largest scores are of the same class. The axis is one of
classes if a softmax, a sigmoid, or a linear layer computes it last: not for the boxes of a
detector, which are concatenated, nor for hidden states, which are normalised. A linear layer
computes values and embeddings, too: the name of the output may tell, else the data does.
"""

from __future__ import annotations

import dataclasses
import re

import onnx

from tvmopt.frontend.last_operator import SIGMOID, SOFTMAX, dims_of, last_operator
from tvmopt.frontend.score_maps import find_score_maps

#: Words in names of outputs that hold values or features, as exporters and model zoos use them.
_VALUES = re.compile(
    r"box(es)?|bbox(es)?|coord(s|inates?)?|landmarks?|keypoints?|pose|offsets?|regression|values?|"
    r"embed(s|dings?)?|features?|hidden|latents?|pooler"
)
#: The same, of outputs that hold scores of classes.
_CLASSES = re.compile(r"logits?|scores?|class(es)?|cls|prob(s|abilit(y|ies))?|labels?|logistic")


@dataclasses.dataclass(frozen=True)
class ClassScores:
    """Whether a model's first output holds scores of classes on its last axis.

    Attributes:
        found: Whether it does.
        why: The reason, for the user: ``"Softmax computes output 'y'"``.
        doubtful: Whether a linear layer alone says so, which may compute values as well.
        maps: For each output the index of its map of scores (:mod:`.score_maps`), or -1; empty
            where no output has one.
    """

    found: bool
    why: str
    doubtful: bool = False
    maps: tuple[int, ...] = ()

    def on(self, *, random_inputs: bool) -> ClassScores:
        """Return it for the inputs at hand.

        A classifier may have one class for all random inputs, so they settle no doubt: a linear
        layer is then taken for one of classes.
        """
        return dataclasses.replace(self, doubtful=False) if random_inputs else self


#: Of arrays that come from no ONNX model.
ASSUMED = ClassScores(True, "the first output is taken for scores of classes")


def find_class_scores(model: onnx.ModelProto) -> ClassScores:
    """Find out whether the first output holds scores of classes on its last axis.

    Args:
        model: A prepared model, without functions.
    """
    return dataclasses.replace(_of_first_output(model.graph), maps=find_score_maps(model.graph))


def _of_first_output(graph: onnx.GraphProto) -> ClassScores:
    output = graph.output[0].name
    last = last_operator(graph, output)
    if last is None:
        return ClassScores(
            False, f"no softmax, sigmoid or linear layer computes output {output!r} last"
        )
    computes = f"{last} computes output {output!r}"
    if last in SOFTMAX:
        return ClassScores(True, computes)
    dims = dims_of(graph, output)
    if dims and dims[-1] == 1:
        return ClassScores(False, f"output {output!r} has one column")
    words = _words(output)
    if any(_CLASSES.fullmatch(word) for word in words):
        return ClassScores(True, computes)
    if word := next((word for word in words if _VALUES.fullmatch(word)), ""):
        return ClassScores(False, f"output {output!r} is named after {word!r}, not after classes")
    return ClassScores(True, computes, doubtful=last not in SIGMOID)


def _words(name: str) -> list[str]:
    """Return the words of a name in snake_case, camelCase or with dots, in lower case."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return [word for word in re.split(r"[^a-z]+", spaced) if word]
