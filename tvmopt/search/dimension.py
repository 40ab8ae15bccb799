"""One dimension of the search: a hyper-parameter whose values are words that the user declares."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tvmopt.choices import one_of
from tvmopt.quantize import Sensitivity
from tvmopt.search.yaml_values import words

if TYPE_CHECKING:
    from tvmopt.search.declared import Declared

Values = tuple[Any, ...] | Mapping[str, tuple[str, ...]]
"""Values of a dimension in a space; by the value of the dimension that it refines, where they
differ."""


@dataclasses.dataclass(frozen=True)
class SearchedModel:
    """Facts of a model and its target that the values of a space depend on.

    Attributes:
        dtypes: The dtypes of the space.
        convolutions: How many convolutions the model has.
        has_large_trees: Whether an ensemble of trees is so large that short keys may pay.
        sensitivity: What layers cost in each dtype; None when it is not known.
        on_gpu: Whether the target is a GPU.
    """

    dtypes: tuple[str, ...]
    convolutions: int
    has_large_trees: bool
    sensitivity: Sensitivity | None
    on_gpu: bool = False


@dataclasses.dataclass(frozen=True)
class Dimension:
    """One hyper-parameter of the search; its values are words that the user declares.

    The value of a dimension that does not apply, or has no values in the space, is no part of a
    choice: the request decides.

    Attributes:
        name: Name of the value: in a choice, in Optuna, and in the parameters of a trial's run.
        key: Name of the values: in the space, in the YAML file and in the user's restrictions.
        help: What it is, for the documentation.
        allowed: All values that exist.
        of: Name of the dimension that it refines; empty for none. It is suggested after that one,
            under a parameter of Optuna for each of its values, such as ``skip_layers_int8``.
        applies_to: Values of ``of`` that it applies to.
    """

    name: str
    key: str
    help: str
    allowed: tuple[str, ...] = ()
    of: str = ""
    applies_to: tuple[str, ...] = ()

    # -- in the space and in Optuna

    def applies(self, chosen: Mapping[str, str]) -> bool:
        """Return whether it applies, given the values of the dimensions before it."""
        return not self.of or chosen.get(self.of) in self.applies_to

    def parameter(self, chosen: Mapping[str, str]) -> str:
        """Return the name of its parameter in Optuna."""
        return f"{self.name}_{chosen[self.of]}" if self.of else self.name

    def values(self, declared: Declared, model: SearchedModel) -> Values:
        """Return its values in the space of a model; none when it is not searched."""
        return tuple(dict.fromkeys(declared.restriction(self.key)))

    def load(self, stored: Any) -> Values:
        """Rebuild its values from the JSON-able form of a space."""
        return tuple(stored)

    # -- in the user's restrictions

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys of the YAML file that restrict it."""
        return (self.key,)

    def read(self, key: str, value: object) -> Any:
        """Read the YAML value of one of its keys.

        Raises:
            ConfigError: When the value has a wrong type.
        """
        return words(key, value)

    def check(self, declared: Declared) -> None:
        """Check the restrictions of its keys.

        Raises:
            ConfigError: When a value does not exist.
        """
        for value in declared.restriction(self.key):
            one_of(self.key, value, self.allowed)

    # -- in a trial

    def settings(self, value: str) -> dict[str, Any]:
        """Return the parameters of the trial's request that the value sets."""
        return {self.name: value}

    def params(self, value: str) -> dict[str, str]:
        """Return the parameters of a trial's run that show the value."""
        return {self.name: value}

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the titles of its columns in the table of trials; the first one is essential."""
        return (self.name,)

    def cells(self, value: str) -> tuple[str, ...]:
        """Return the cells of a trial in those columns."""
        return (value,)

    def label(self, value: str) -> str:
        """Return the words for the value in the label of a choice; empty for none."""
        return value
