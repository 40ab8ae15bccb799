"""Make a mutant from its number: a seed model with one to four mutations, or damaged bytes."""

from __future__ import annotations

import dataclasses
import random

import onnx
from google.protobuf.message import DecodeError

from tests.fuzz.aborts import answer
from tests.fuzz.bombs import deep_bytes
from tests.fuzz.mutations import WEIGHTS, Files
from tests.fuzz.seeds import SEEDS, Seed

_BYTES = 0.08
#: Share of mutants that the ONNX checker must accept after each mutation, if possible.
_CAREFUL = 0.6
_TRIES = 5
_SHAPES = ("x:2x3x2", "x:1", "x:", "nope:1", "x:0", "x:999999999x999999999", "x:1x2x3x4", "x:2x3")


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A file that claims to be an ONNX model.

    Attributes:
        content: Bytes of the file.
        files: Files that lie beside it, by name.
        input_shapes: The parameter ``input_shapes``.
        story: The seed model and the mutations.
    """

    content: bytes
    files: Files
    input_shapes: str
    story: str


def mutant(number: int, seed: int = 0) -> Mutant:
    """Return the mutant of a number, deterministically."""
    chance = random.Random(f"{seed}/{number}")
    make = chance.choice(SEEDS)
    start: Seed = make()
    model, files = onnx.ModelProto(), Files()
    model.CopyFrom(start.model)
    story = [make.__name__]
    careful = chance.random() < _CAREFUL
    for _ in range(chance.choice([1, 1, 1, 2, 2, 3, 4])):
        model, name = _mutated(model, chance, files, _TRIES if careful else 1)
        story.append(name)
    content = model.SerializeToString()
    if not careful and chance.random() < _BYTES / (1 - _CAREFUL):
        content = _damaged(content, chance)
        story.append("bytes")
    shapes = start.input_shapes
    if chance.random() < 0.03:
        shapes = chance.choice(_SHAPES)
        story.append(f"shapes {shapes}")
    return Mutant(content, files, shapes, ", ".join(story))


def _mutated(
    model: onnx.ModelProto, chance: random.Random, files: Files, tries: int
) -> tuple[onnx.ModelProto, str]:
    """Return ``model`` after one mutation, and its name; retry ``tries`` times for a valid one."""
    for left in reversed(range(tries)):
        [mutation] = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
        found, beside = onnx.ModelProto(), Files(files)
        found.CopyFrom(model)
        try:
            mutation(found, chance, beside)
        except (ValueError, TypeError, DecodeError) as error:  # protobuf rejects the value
            if not left:
                return model, f"no {mutation.__name__} ({type(error).__name__})"
            continue
        if not left or _is_valid(found):
            files |= beside
            return found, mutation.__name__
    raise AssertionError


def _is_valid(model: onnx.ModelProto) -> bool:
    def check() -> bytes:
        onnx.checker.check_model(model, full_check=True)
        return b""

    return answer(check) is not None


def _damaged(content: bytes, chance: random.Random) -> bytes:
    """Return ``content`` truncated, or with bytes replaced, inserted, removed or repeated."""
    data = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 5])):
        if not data:
            break
        at = chance.randrange(len(data))
        size = chance.choice([1, 2, 8, 100])
        match chance.randrange(7):
            case 0:
                del data[at:]
            case 1:
                data[at] = chance.randrange(256)
            case 2:
                data[at] ^= 1 << chance.randrange(8)
            case 3:
                data[at:at] = bytes(chance.randrange(256) for _ in range(size))
            case 4:
                data += deep_bytes(chance.choice([10, 30, 34, 500, 20_000]))
            case 5:
                del data[at : at + size]
            case _:
                data[at:at] = data[at : at + size]
    return bytes(data)
