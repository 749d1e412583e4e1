"""The declared state of one operator on one worker: its store, handles and timers."""

from __future__ import annotations

import heapq
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...configs.errors import UsageError
from ...state.declarations import StateDeclaration
from ...state.keys import hash_keys
from ...state.node_transfer import export_slots, with_columns
from ...state.records import RecordLayout, copy_of_records
from ...state.sealed_records import is_alive
from ...state.store import KeyedStore
from ...state.timers import NO_TIME, TimerQueue
from ..rows import fail_at
from ..sealing import Epochs
from .entries import EntriesHandle, ListHandle, id_field
from .expiry import Moment, expiring, ttl_ns_of
from .handles import Cursor, Handle, TimerHandle, class_of, queued_field
from .map_handle import MapHandle
from .sealed_state import SealedState
from .state_fields import fields_of
from .stored_parts import StoredParts
from .timer_chain import FIRED_AT_THE_END_MAX, TimerChain

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from ..process import InstanceContext, Output

__all__ = ["KeyedState", "TimerCall"]

Slots = npt.NDArray[np.int64]

_END_NS = (1 << 63) - 1

_MADE_NOW_ENTRIES_MAX = 1 << 16
"""Of how many entries of changed keys the rows are made at a marker at most."""


class TimerCall(NamedTuple):
    """What to do when a timer fires.

    Attributes:
        on_timer: the user's method.
        out: receives what it emits.
        bind: is called with the key before that.
    """

    on_timer: Callable[[TimerHandle, Output], object]
    out: Output
    bind: Callable[[Any], None]


class KeyedState:
    """What is kept for the keys of one operator on one worker.

    Args:
        context: of the operator.
        declared: the declarations by name.
        first: a batch of rows, which tells the types of the key columns.
        keys: the key columns of `first`.
        watermark_ns: what the operator has seen of event time.
    """

    def __init__(
        self,
        context: InstanceContext,
        declared: Mapping[str, StateDeclaration],
        first: Batch,
        keys: Sequence[str],
        watermark_ns: int,
    ) -> None:
        self._keys = tuple(keys)
        fields = [field for one in declared.values() for field in fields_of(one)]
        context.state_budget.advise(context.operator_id, "let keys go (ttl=, clear())")
        layout = RecordLayout(first.schema.select(self._keys), fields)
        self.store = KeyedStore(
            layout,
            context.state_budget,
            context.operator_id,
            virtual_nodes=context.virtual_nodes,
        )
        self.cursor: Cursor = [None]
        self.moment = Moment()
        self._expiring: list[Any] = []
        self.handles: dict[str, Handle | EntriesHandle] = {}
        for name, one in declared.items():
            self.handles[name] = self._handle(one, context)
        self._clock = context.clock
        self.ttl_clock = "processing" if first.times is None else "event"
        """By what values with a `ttl` are gone."""

        self._freed_until_ns = -NO_TIME
        if self.ttl_clock == "event":
            self._freed_until_ns = max(self._freed_until_ns, watermark_ns)
        self._timers = [one for one in self.handles.values() if isinstance(one, TimerHandle)]
        self._queues = [
            TimerQueue(self.store, one.name, queued_field(one.name)) for one in self._timers
        ]
        self._times: list[Any] = [self.store.records[timer.name].data for timer in self._timers]
        self._of_event_time = [
            which for which, timer in enumerate(self._timers) if timer.declaration.clock == "event"
        ]
        self._touched: list[Slots] = []
        self.parts = StoredParts(
            context.operator_id,
            context.state_budget,
            self.store,
            self._keys,
            self._begin_part,
            self.settle,
        )
        self._sealed: Epochs[int] = Epochs()  # up to when was freed
        self._key_class = _key_class(self._keys)

    def _handle(
        self, declared: StateDeclaration, context: InstanceContext
    ) -> Handle | EntriesHandle:
        """Return the handle of a declared value."""
        if declared.kind in ("list", "map"):
            made: Any = ListHandle if declared.kind == "list" else MapHandle
            shared: Any = (context.state_budget, context.virtual_nodes)
        else:
            made, shared = class_of(declared), ()
        ttl_ns = ttl_ns_of(context.operator_id, declared)
        if ttl_ns is not None:
            made = expiring(made)
        handle: Any = made(declared, self.store, self.cursor, *shared)
        if ttl_ns is not None:
            handle.start(self.store, ttl_ns, self.moment)
            self._expiring.append(handle)
        return handle

    @property
    def moment_of_rows(self) -> Moment | None:
        """What takes the event time of each row; None if nothing depends on it."""
        return self.moment if self._expiring and self.ttl_clock == "event" else None

    @property
    def event_times(self) -> list[Any]:
        """When the timers of event time are set for, by record: one `memoryview` each, ns."""
        return [self._times[which] for which in self._of_event_time]

    def slots(self, batch: Batch, keys: Sequence[str]) -> Slots:
        """Return the record of each row's key, int64 (num_rows,).

        Args:
            batch: the rows.
            keys: the key columns there, in the order of the operator's first input.
        """
        renamed = batch.select(keys)
        if tuple(keys) != self._keys:
            renamed = renamed.rename(dict(zip(keys, self._keys, strict=True)))
        hashes, _ = hash_keys(renamed, self._keys)
        slots = self.store.slots(hashes, renamed)
        self._begin_part(batch, slots)
        return slots

    def _begin_part(self, batch: Batch, slots: Slots) -> None:
        self._note_moment(batch)
        self._touched.append(slots)

    def _note_moment(self, batch: Batch) -> None:
        """Note at what time a batch comes; in the row form each row then has its own."""
        if not self._expiring:
            return
        if self.ttl_clock == "processing":
            now_ns = self._clock.wall_ns()
            self.moment.set(now_ns, now_ns)
        elif batch.times is not None and batch.num_rows:
            self.moment.set(int(batch.times.min()), int(batch.times.max()))

    def settle(self) -> None:
        """Enter the timers that were set, and drop the keys whose state is the initial one."""
        self.cursor[0] = None
        for handle in self._expiring:
            handle.expiry.settle()
            self._touched.append(handle.free_due(self._freed_until_ns))
        touched, self._touched = self._touched, []
        self.cursor[0] = None
        for slots in touched:
            for queue in self._queues:
                queue.schedule(slots)
        for slots in touched:
            initial = self.store.initial(slots)
            if len(initial):
                self.store.delete(initial)

    def clear(self) -> None:
        """Give all declared values of the key at hand their initial values."""
        slot = self.cursor[0]
        if slot is None:
            msg = "clear() clears the state of a key, and there is none here"
            raise UsageError(msg)
        for handle in self.handles.values():
            handle.clear()

    def key_of(self, values: Iterable[Any]) -> Any:
        """Return a key as a named tuple."""
        return tuple.__new__(self._key_class, values)  # as its `_make`, without a call

    def earliest_ns(self, clock: str) -> int | None:
        """Return when the next timer by a clock may fire, ns; None if none is set."""
        times = [
            queue.earliest_ns
            for timer, queue in zip(self._timers, self._queues, strict=True)
            if timer.declaration.clock == clock and queue.earliest_ns is not None
        ]
        for handle in self._expiring:
            ends_ns = handle.expiry.earliest_ns
            # What the watermark has passed and is not freed yet is for the next turn.
            if ends_ns is not None and (clock == self.ttl_clock or ends_ns <= self._freed_until_ns):
                times.append(ends_ns if clock == self.ttl_clock else 0)
        return min(times, default=None)

    def fire(self, clock: str, until_ns: int, call: TimerCall) -> None:
        """Call `on_timer` for all timers up to a time, in order of time, then declaration, hash.

        Args:
            clock: "event" or "processing".
            until_ns: the watermark, or what the clock shows.
            call: what to call; the time of its output is set to that of each timer of event time.
        """
        self.settle()
        self._fire_due(self._due(clock, until_ns), clock, until_ns, call, TimerChain())
        if clock == self.ttl_clock:
            self._freed_until_ns = max(self._freed_until_ns, until_ns)
        self.settle()

    def fire_all(self, call: TimerCall) -> None:
        """Call `on_timer` for all timers that are set, as no row follows.

        Those of event time continue while `on_timer` sets others: in order of time up to the latest
        one that was set, then key by key, so that one that continues for ever is found at its first
        key. Those of processing time fire once: the time of others does not come.
        """
        self._fire_all_of_event_time(call)
        self.settle()
        due = self._due("processing", _END_NS)
        self._fire_due(due, "processing", _END_NS, call, TimerChain(), once=True)
        self.settle()
        self._fire_all_of_event_time(call)
        self.settle()

    def _fire_all_of_event_time(self, call: TimerCall) -> None:
        self.settle()
        due = self._due("event", _END_NS)
        if due:
            self._fire_due(due, "event", due[-1][0], call, TimerChain())
        self.settle()
        by_key: dict[int, list[tuple[int, int, int, int]]] = {}
        for one in self._due("event", _END_NS):
            by_key.setdefault(one[-1], []).append(one)
        for due in by_key.values():
            self._fire_due(due, "event", _END_NS, call, TimerChain(FIRED_AT_THE_END_MAX))

    def _fire_due(
        self,
        due: list[tuple[int, int, int, int]],
        clock: str,
        until_ns: int,
        call: TimerCall,
        chain: TimerChain,
        *,
        once: bool = False,
    ) -> None:
        """Fire timers and those that they set up to a time; `once` fires none a second time."""
        if not due:
            return
        slots = np.unique(np.array([slot for _, _, _, slot in due], np.int64))
        self.store.note(slots)
        columns = [column.to_pylist() for column in self.store.keys_of(slots).columns]
        keys = dict(zip(slots.tolist(), zip(*columns, strict=True), strict=True))
        same_clock = [n for n, t in enumerate(self._timers) if t.declaration.clock == clock]
        while due:
            time_ns, which, hashed, slot = heapq.heappop(due)
            if self._times[which][slot] != time_ns:  # moved or cleared meanwhile
                continue
            self.cursor[0] = slot
            call.bind(keys[slot])
            self._fire_one(which, slot, call, chain)
            if once:
                chain.note(which, slot, time_ns)
            for other in same_clock:
                again_ns = self._times[other][slot]
                if again_ns == NO_TIME or again_ns > until_ns:
                    continue
                if not once:
                    chain.note(which, slot, time_ns)
                elif (other, slot) in chain.fired:
                    continue
                heapq.heappush(due, (again_ns, other, hashed, slot))
        self._touched.append(slots)

    def fire_before(self, slot: int, time_ns: int, call: TimerCall) -> None:
        """Call `on_timer` for the timers of event time of the key at hand that come before a row.

        For rows in event-time order: so it does not matter in which batches they come.
        """
        chain = TimerChain()
        while True:
            earliest_ns, which = min((self._times[one][slot], one) for one in self._of_event_time)
            if earliest_ns >= time_ns:
                return
            self._fire_one(which, slot, call, chain)
            chain.note(which, slot, earliest_ns)

    def _fire_one(self, which: int, slot: int, call: TimerCall, chain: TimerChain) -> None:
        """Unset a timer and call `on_timer`; an error names the timer and its key.

        Raises:
            UsageError: it would fire for ever.
            RowFailure: `on_timer` raised.
        """
        timer, times = self._timers[which], self._times[which]
        time_ns = times[slot]
        times[slot] = NO_TIME
        if timer.declaration.clock == "event":
            call.out.time_ns = time_ns
        if timer.declaration.clock == self.ttl_clock:
            now_ns = max(time_ns, self._freed_until_ns)
            self.moment.set(now_ns, now_ns)
        if chain.fired and (problem := chain.problem(which, slot, time_ns)) is not None:
            msg = f"{self._described(timer, slot)}: {problem}"
            raise UsageError(msg)
        try:
            call.on_timer(timer, call.out)
        except BaseException as error:  # noqa: BLE001  # it is raised again
            fail_at(error, self._described(timer, slot))

    def _described(self, timer: TimerHandle, slot: int) -> str:
        key = self.store.keys_of(np.array([slot], np.int64)).preview(0)
        return f"timer {timer.name!r} of key {key}"

    def _due(self, clock: str, until_ns: int) -> list[tuple[int, int, int, int]]:
        """Return the timers to fire, sorted: time in ns, which timer, hash of the key, slot."""
        due: list[tuple[int, int, int, int]] = []
        records = self.store.records
        for which, (timer, queue) in enumerate(zip(self._timers, self._queues, strict=True)):
            if timer.declaration.clock != clock:
                continue
            slots, unset = queue.take_due(until_ns)
            self._touched.append(unset)
            times, hashes = records[timer.name][slots], records["#hash"][slots]
            rows = zip(times.tolist(), hashes.tolist(), slots.tolist(), strict=True)
            due += [(time_ns, which, hashed, slot) for time_ns, hashed, slot in rows]
        due.sort()
        return due

    # -- saving and moving --------------------------------------------------------------------

    def dump(self, nodes: Slots) -> Iterator[Batch]:
        """Return the values of keys, then the entries of each list and map.

        The batches have event times if those decide what values with a `ttl` are gone.
        """
        self.settle()
        return self.export(self.store.scan(nodes)[0])

    def export(self, slots: Slots) -> Iterator[Batch]:
        """Yield the values of the keys of records, as `dump` does."""
        batches = [export_slots(self.store, slots)]
        for handle in self._with_entries:
            rows, columns = handle.dump(slots)
            batches.append(with_columns(self.store.keys_of(slots[rows]), columns))
        for batch in batches:
            yield self._with_times(batch)

    def made_now(self, slots: Slots) -> Iterator[Batch] | None:
        """Yield the values of those of some records that have a key, as `dump` does.

        Returns None instead if they have many entries.
        """
        living = slots[is_alive(copy_of_records(self.store.records, slots))]
        entries = sum(handle.count(living) for handle in self._with_entries)
        return None if entries > _MADE_NOW_ENTRIES_MAX else self.export(living)

    def sealed(self, epoch: int) -> SealedState:
        """Return what another thread may read of the last seal, which is of this epoch."""
        entries = [handle.sealed(epoch) for handle in self._with_entries]
        return SealedState(self.store.sealed(epoch), entries, self._with_times)

    def _with_times(self, batch: Batch) -> Batch:
        times = np.zeros(batch.num_rows, np.int64) if self.ttl_clock == "event" else None
        return batch.with_times(times)

    def dumps_as(self, rows: Batch) -> bool:
        """Return whether rows that begin a dump have the columns that this state has."""
        return rows.schema == export_slots(self.store, np.empty(0, np.int64)).schema

    def seal(self, epoch: int) -> None:
        """Let the state as it is now be one to go back to; raise ValueError unless it is new."""
        self.settle()
        self._sealed.add(epoch, self._freed_until_ns)
        for store in self._stores:
            store.seal(epoch)

    def has_seal(self, epoch: int) -> bool:
        """Return whether there is a seal of an epoch."""
        return epoch in self._sealed

    def roll_back(self, epoch: int) -> None:
        """Go back to the state of a seal; raise ValueError if there is none."""
        self.cursor[0] = None
        self._touched = []
        self.parts.forget()
        self._freed_until_ns = self._sealed.back_to(epoch)
        slots = self.store.roll_back(epoch)
        for handle in self._with_entries:
            handle.roll_back(epoch)
        for expiring_handle in self._expiring:
            expiring_handle.expiry.drop_written()
        self._enter(slots)

    def release(self, epoch: int) -> None:
        """Give up going back before a seal; raise ValueError if there is none."""
        self._sealed.release(epoch)
        for store in self._stores:
            store.release(epoch)

    @property
    def has_entries(self) -> bool:
        """Whether keys have lists or maps."""
        return bool(self._with_entries)

    @property
    def _stores(self) -> list[KeyedStore]:
        return [self.store, *(one for each in self._with_entries for one in each.stores)]

    def load(self, batch: Batch) -> None:
        """Take what another dumped, in its order; raise StateFullError."""
        for handle in self._with_entries:
            if handle.dumped_column in batch.schema:
                hashes, _ = hash_keys(batch, self._keys)
                handle.load(self.store.slots(hashes, batch), batch)
                return
        slots = self.store.import_nodes(batch)
        for handle in self._with_entries:  # which follow, and get other ids here
            for name in (handle.name, id_field(handle.name)):
                self.store.records[name][slots] = 0
        self._enter(slots)

    def _enter(self, slots: Slots) -> None:
        """Enter the timers of records that came from elsewhere."""
        for queue in self._queues:
            queue.enter(slots)
        for expiring_handle in self._expiring:
            if not isinstance(expiring_handle, MapHandle):
                expiring_handle.expiry.enter(slots)

    def forget(self) -> None:
        """Give the memory of all keys back; the state is of no use any more."""
        self.parts.close()
        self.store.drop()
        for handle in self._with_entries:
            handle.forget()

    @property
    def _with_entries(self) -> list[EntriesHandle]:
        return [one for one in self.handles.values() if isinstance(one, EntriesHandle)]


def _key_class(names: tuple[str, ...]) -> Any:
    """Return the class of keys: a named tuple, in which other names than Python's are numbered."""
    return namedtuple("Key", names, rename=True)
