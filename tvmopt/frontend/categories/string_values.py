"""String values of a graph, in groups that share a table of categories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tvmopt.frontend.categories.attributes import text


class StringValues:
    """The string values of a graph by name; values that are joined share one table.

    Attributes:
        from_call: Values that may hold any string of an input, also one that is in no table.
    """

    def __init__(self) -> None:
        self.from_call: set[str] = set()
        self._parents: dict[str, str] = {}  # union-find
        self._tables: dict[str, dict[str, int]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._parents

    def add(self, name: str, *, from_call: bool = False) -> None:
        """Add a value, which is then a string."""
        self._parents.setdefault(name, name)
        if from_call:
            self.from_call.add(name)

    def join(self, names: Sequence[str]) -> None:
        """Add values, and let them share one table."""
        for name in names:
            self.add(name)
        first = self._root(names[0])
        for name in names[1:]:
            self._parents[self._root(name)] = first

    def table(self, name: str) -> dict[str, int]:
        """Return the table of a value: the code of each string."""
        return self._tables.setdefault(self._root(name), {})

    def codes(self, name: str, texts: Iterable[bytes | str]) -> list[int]:
        """Return the codes of strings in the table of a value, to which they are added."""
        table = self.table(name)
        return [table.setdefault(text(each), len(table)) for each in texts]

    def _root(self, name: str) -> str:
        while self._parents[name] != name:
            self._parents[name] = self._parents[self._parents[name]]
            name = self._parents[name]
        return name
