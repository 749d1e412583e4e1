"""One memory budget per worker for the state of all of its operators."""

from __future__ import annotations

from ..configs.errors import StateFullError

__all__ = ["StateBudget", "format_mib"]

SETTING = "runtime.state_bytes"


class StateBudget:
    """How much memory the state of one worker's operators may take, and how much it takes.

    Args:
        limit_bytes: the setting `runtime.state_bytes`.
    """

    def __init__(self, limit_bytes: int = 1 << 30) -> None:
        self.limit_bytes = limit_bytes
        self._used: dict[str, int] = {}
        self._remedies: dict[str, str] = {}

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

    def take(self, operator: str, nbytes: int, keys: int) -> None:
        """Grant memory to an operator.

        Args:
            operator: its id.
            nbytes: how much more it needs.
            keys: how many keys it keeps, for the message.

        Raises:
            StateFullError: the budget would be exceeded; nothing is granted.
        """
        if self.used_bytes + nbytes > self.limit_bytes:
            others = self.used_bytes - self.used_by(operator)
            beside = f", other operators {format_mib(others)}" if others else ""
            msg = (
                f"operator {operator!r}: its state of {keys:,} keys takes"
                f" {format_mib(self.used_by(operator))} and needs {format_mib(nbytes)}"
                f" more{beside}, but a worker's state may take {format_mib(self.limit_bytes)}:"
                f" raise {SETTING}, run more workers,"
                f" or {self._remedies.get(operator, 'keep fewer keys')}"
            )
            raise StateFullError(msg)
        self._used[operator] = self.used_by(operator) + nbytes

    def give_back(self, operator: str, nbytes: int) -> None:
        """Take memory back from an operator."""
        self._used[operator] -= nbytes


def format_mib(nbytes: int) -> str:
    """Return a number of bytes as text: "12.5 MiB"."""
    return f"{nbytes / (1 << 20):,.1f} MiB"
