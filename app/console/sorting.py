"""Columns that a table can be sorted by: the one in use, and the links of the others. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sorting:
    """How a table is sorted, and how else it can be."""

    name: str
    descending: bool
    #: By column.
    links: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """As an address names it."""
        return f"-{self.name}" if self.descending else self.name


def parse_sort(text: str, known: Collection[str], usual: Sorting) -> Sorting:
    """``wait``, or ``-wait`` for the largest first; the usual one for anything else."""
    name = text.removeprefix("-")
    return Sorting(name, text.startswith("-")) if name in known else usual


def with_links(
    sorting: Sorting,
    offered: Collection[str],
    rising: Collection[str],
    url: Callable[[str], str],
) -> Sorting:
    """With a link for each column: the other direction of the one in use; of others the largest
    first, but for those that are ``rising`` at first."""
    links = {}
    for name in offered:
        down = not sorting.descending if name == sorting.name else name not in rising
        links[name] = url(Sorting(name, down).text)
    return Sorting(sorting.name, sorting.descending, links)
