"""Groupings: which instances of the next operator receive a row.

::

    Forward          the same instance number; what a plain chain does, and what fusion needs
    Shuffle          any one instance, evenly
    LocalOrShuffle   an instance in the same worker if there is one, else as Shuffle
    Key(columns)     the one instance that owns the key: hash → virtual node → instance
    All              every instance
    Global           instance 0
    Direct(column)   the instance whose number is in an integer column
    Custom(function) the instance that a function returns for each row

A grouping is only a frozen description: `keys` computes hashes, and the partitioner of
`whale_ray.tasks` assigns rows to instances.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..configs.errors import TopologyError

if TYPE_CHECKING:
    from ..transport.wire.batch import Batch

    CustomFunction = Callable[[Batch, int], Any]
else:
    CustomFunction = Callable

__all__ = [
    "All",
    "Custom",
    "Direct",
    "Forward",
    "Global",
    "Grouping",
    "Key",
    "LocalOrShuffle",
    "Shuffle",
]


class Grouping(ABC):
    """The base of all groupings; every one is frozen, comparable and picklable."""

    @abstractmethod
    def describe(self) -> str:
        """Return the label that `explain` prints on an edge."""


@dataclass(frozen=True)
class Forward(Grouping):
    """Send to the instance with the same number; both operators have the same parallelism."""

    def describe(self) -> str:
        """Return the label that `explain` prints on an edge."""
        return "forward"


@dataclass(frozen=True)
class Shuffle(Grouping):
    """Send each row to one instance, round-robin, so that all get about the same share."""

    def describe(self) -> str:
        """Return the label that `explain` prints on an edge."""
        return "shuffle"


@dataclass(frozen=True)
class LocalOrShuffle(Grouping):
    """Shuffle over the instances of the same worker if it has any, else over all."""

    def describe(self) -> str:
        """Return the label that `explain` prints on an edge."""
        return "local or shuffle"


@dataclass(frozen=True)
class All(Grouping):
    """Send every row to every instance: one-to-many, encoded once."""

    def describe(self) -> str:
        """Return the label that `explain` prints on an edge."""
        return "all"


@dataclass(frozen=True)
class Global(Grouping):
    """Send every row to instance 0."""

    def describe(self) -> str:
        """Return the label that `explain` prints on an edge."""
        return "global"


@dataclass(frozen=True)
class Key(Grouping):
    """Send all rows of one key to one instance, in order.

    Attributes:
        columns: names of the key columns; their order matters to the hash.
    """

    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        if isinstance(self.columns, str):
            object.__setattr__(self, "columns", (self.columns,))
        columns = tuple(self.columns)
        object.__setattr__(self, "columns", columns)
        if not columns:
            msg = "key_by needs at least one column: key_by('vehicle_id')"
            raise TopologyError(msg)
        for name in columns:
            if not isinstance(name, str):
                msg = (
                    f"key_by takes column names, not {type(name).__name__} {name!s}: compute the"
                    " key with with_column first, then name it"
                )
                raise TopologyError(msg)
        repeated = sorted({name for name in columns if columns.count(name) > 1})
        if repeated:
            msg = f"key_by names column {repeated[0]!r} twice: name it once"
            raise TopologyError(msg)

    def describe(self) -> str:
        """Return the label that `explain` prints on an edge."""
        return f"key by {', '.join(self.columns)}"


@dataclass(frozen=True)
class Direct(Grouping):
    """Send each row to the instance whose number (0 … parallelism − 1) is in a column."""

    column: str

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            msg = (
                f"direct takes the name of an integer column, not {self.column!r}:"
                " direct('instance')"
            )
            raise TopologyError(msg)

    def describe(self) -> str:
        """Return the label that `explain` prints on an edge."""
        return f"direct by {self.column}"


@dataclass(frozen=True)
class Custom(Grouping):
    """Send each row to the instance that a function returns.

    Attributes:
        function: `function(batch, parallelism)` → integers, shape (num_rows,), each within
            0 … parallelism − 1.
    """

    function: CustomFunction

    def __post_init__(self) -> None:
        if not callable(self.function):
            msg = (
                f"partition_by takes a function (batch, parallelism) → instance numbers,"
                f" not {self.function!r}"
            )
            raise TopologyError(msg)

    def describe(self) -> str:
        """Return the label that `explain` prints on an edge."""
        return f"custom by {getattr(self.function, '__name__', type(self.function).__name__)}"
