"""One budget per worker for the state of all of its operators: memory, then room on the disk."""

from __future__ import annotations

from collections.abc import Collection

from ..configs.errors import StateFullError
from ..configs.units import format_mib

__all__ = ["StateBudget"]

SETTING = "runtime.state_bytes"


class StateBudget:
    """How much memory the state of one worker's operators may take, and how much it takes.

    Args:
        limit_bytes: the setting `runtime.state_bytes`.
        disk_bytes_max: what state that can lie on the disk may take there, beyond the limit.
        disk_folder: where; empty for the system's temporary directory.
    """

    def __init__(
        self, limit_bytes: int = 1 << 30, disk_bytes_max: int = 0, disk_folder: str = ""
    ) -> None:
        self.limit_bytes = limit_bytes
        self.disk_bytes_max, self.disk_folder = disk_bytes_max, disk_folder
        self._used: dict[str, int] = {}
        self._on_disk: dict[str, int] = {}
        self._remedies: dict[str, str] = {}
        self._known_as: dict[str, str] = {}

    @property
    def used_bytes(self) -> int:
        """What all operators take together."""
        return sum(self._used.values())

    def used_by(self, operator: str) -> int:
        """Return the bytes that one operator's state takes."""
        return self._used.get(operator, 0)

    def advise(self, operator: str, remedy: str) -> None:
        """Note how a user can let an operator keep less, for the message when memory ends.

        Args:
            operator: its id.
            remedy: what to do, as the end of "…, or": "take a shorter window".
        """
        self._remedies[operator] = remedy

    def name(self, operator: str, known_as: str) -> None:
        """Note by which id users know an operator that the planner has added, for messages."""
        self._known_as[operator] = known_as

    def keep_only(self, operators: Collection[str]) -> None:
        """Forget what other operators take: their state is gone."""
        self._used = {name: taken for name, taken in self._used.items() if name in operators}
        self._on_disk = {name: taken for name, taken in self._on_disk.items() if name in operators}

    def take(self, operator: str, nbytes: int, entries: int) -> None:
        """Grant memory to an operator.

        Args:
            operator: its id.
            nbytes: how much more it needs.
            entries: how many keys or rows it keeps, for the message.

        Raises:
            StateFullError: the budget would be exceeded; nothing is granted.
        """
        if self.used_bytes + nbytes > self.limit_bytes:
            raise self._full(operator, nbytes, entries)
        self._used[operator] = self.used_by(operator) + nbytes

    def take_on_disk(self, operator: str, nbytes: int, entries: int) -> None:
        """Grant room on the disk to an operator; else as `take`."""
        if not self.has_room_on_disk(nbytes):
            raise self._full(operator, nbytes, entries)
        self._on_disk[operator] = self.spilled_by(operator) + nbytes

    def check(self, operator: str, entries: int) -> None:
        """Raise as `take` if what was charged exceeds the budget."""
        if self.free_bytes < 0:
            raise self._full(operator, 0, entries)

    def _full(self, operator: str, nbytes: int, entries: int) -> StateFullError:
        others = self.used_bytes - self.used_by(operator)
        named = self._known_as.get(operator, operator)
        needs = f" and needs {format_mib(nbytes)} more" if nbytes else ""
        beside = f", other operators {format_mib(others)}" if others else ""
        return StateFullError(
            f"operator {named!r}: its state of {entries:,} keys or rows takes"
            f" {format_mib(self.used_by(operator))}{needs}{beside},"
            f" but a worker's state may take {format_mib(self.limit_bytes)}{self._beyond}:"
            f" raise {SETTING}, run more workers,"
            f" or {self._remedies.get(named, 'keep fewer keys')}"
        )

    def take_or_spill(self, operator: str, nbytes: int, entries: int) -> bool:
        """Grant memory, or room on the disk if that is used up; raise as `take` if both are.

        Returns:
            whether it is on the disk.
        """
        spilled = sum(self._on_disk.values())
        fits = self.used_bytes + nbytes <= self.limit_bytes
        if fits or spilled + nbytes > self.disk_bytes_max:
            self.take(operator, nbytes, entries)
            return False
        self._on_disk[operator] = self.spilled_by(operator) + nbytes
        return True

    @property
    def free_bytes(self) -> int:
        """How much memory is left."""
        return self.limit_bytes - self.used_bytes

    def move_to_disk(self, operator: str, nbytes: int) -> bool:
        """Charge memory of an operator to its room on the disk; return whether there was any."""
        if not self.has_room_on_disk(nbytes):
            return False
        self._used[operator] -= nbytes
        self._on_disk[operator] = self.spilled_by(operator) + nbytes
        return True

    def has_room_on_disk(self, nbytes: int) -> bool:
        """Return whether so many more bytes may lie on the disk."""
        return sum(self._on_disk.values()) + nbytes <= self.disk_bytes_max

    def charge(self, operator: str, nbytes: int, *, on_disk: bool) -> None:
        """Count bytes that an operator takes without a look at the limits."""
        taken = self._on_disk if on_disk else self._used
        taken[operator] = taken.get(operator, 0) + nbytes

    def spilled_by(self, operator: str) -> int:
        """Return the bytes on the disk of one operator's state."""
        return self._on_disk.get(operator, 0)

    def give_back(self, operator: str, nbytes: int, *, on_disk: bool = False) -> None:
        """Take memory, or room on the disk, back from an operator."""
        self.charge(operator, -nbytes, on_disk=on_disk)

    @property
    def _beyond(self) -> str:
        if not any(self._on_disk.values()):
            return ""
        return f" and {format_mib(self.disk_bytes_max)} on disk (runtime.spill_bytes_max)"
