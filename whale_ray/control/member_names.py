"""The names of a job's members in messages."""

from __future__ import annotations


class MemberNames:
    """Names workers 0 … n − 1, followed by the relays; if `names` is empty, all are workers."""

    def __init__(self, workers: int, relays: int, names: tuple[str, ...]) -> None:
        self._workers = workers
        self._names = names or tuple(f"worker {member}" for member in range(workers + relays))

    def of(self, member: int) -> str:
        """Return the name of one member."""
        return self._names[member]

    def of_all(self, members: list[int]) -> str:
        """Return the names of several: "workers 1, 2 and relay of host-0"."""
        workers = [str(member) for member in members if member < self._workers]
        named = [self._names[member] for member in members if member >= self._workers]
        if workers:
            named.insert(0, f"worker{'s' if len(workers) > 1 else ''} {', '.join(workers)}")
        return " and ".join(named)

    def not_drained(self, members: list[int]) -> str:
        """Return the message that members did not drain in time: relays only wait for workers."""
        late = [member for member in members if member < self._workers] or members
        return (
            f"{self.of_all(late)} did not drain in time: raise runtime.drain_timeout_ms, "
            "or cancel with a second Ctrl-C"
        )

    def not_in_time(self, members: list[int], what: str) -> str:
        """Return the message that members did not do something in time, with the remedy."""
        return (
            f"{self.of_all(members)} did not {what} in time: free processors or memory, "
            "use fewer --workers, or raise runtime.start_timeout_ms"
        )
