"""`KeyedProcess`: one logical instance per key, whose state is declared; with one input or two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

from ...configs.errors import TopologyError, UsageError
from ...state.declarations import StateDeclaration
from ...state.watermarks import WATERMARK_NONE
from ..process import (
    CoProcess,
    InstanceContext,
    Output,
    Process,
    call_method,
    check_nothing,
    common_time,
)
from .sealed_keys import SealedKeys

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ...transport.wire.batch import Batch
    from ..expressions.compiled_function import CompiledFunction
    from ..rows import Row
    from .compiled_rows import CompiledRows
    from .handles import TimerHandle
    from .keyed_state import KeyedState, TimerCall
    from .stored_parts import StoredParts
    from .translation import Translation

    Slots = npt.NDArray[np.int64]

    RowMethod = TypeVar("RowMethod", bound=Callable[..., None])

__all__ = ["Keyed", "KeyedProcess", "compiled", "missing_timer"]

_NO_ROW = object()
_SEALED = ("_sealed",)
_WORKER_METHODS = ("on_watermark", "deadline_ns", "on_deadline", "close")
"""What a worker calls to let timers fire: classes of users must not replace it."""


@overload
def compiled(function: RowMethod) -> RowMethod: ...
@overload
def compiled(function: Callable[..., Any]) -> CompiledFunction: ...
def compiled(function: Any) -> Any:
    """Compile a function of values for expressions, or the `on_row` of a `KeyedProcess`.

    A function of values, called with columns, is an expression, see
    `docs/pages/guide/expressions.md`::

        @whale.compiled
        def cents(price, rate):
            return int(price * rate * 100 + 0.5)

        bids.with_column("cents", cents("price", whale.col("rate")))

    It takes numbers, booleans, dates and times (as integers of their column's unit), and returns a
    number or a boolean. It is called for every row in which no argument is null, else the result is
    null; integers wrap, and dividing by zero gives an infinity, NaN, or 0 for integers. It may do
    nothing but compute its result.

    The `on_row` of a process becomes a loop over columns, without Python::

        class Spent(whale.KeyedProcess):
            spent = state.sum("double")
            schema = whale.Schema.of(bidder="string", spent="double")

            @whale.compiled
            def on_row(self, row, out):
                self.spent.add(row.price)
                out.emit_row(bidder=row.bidder, spent=self.spent.get())

    It may use declared state and columns of fixed width without nulls (times are integers of their
    column's unit; timers take ns), numbers, `math`, and functions that numba compiles; columns of
    any type may be passed on. What it emits has the types of `schema`. `on_timer` stays Python.

    Raises:
        TopologyError: a function of values does something besides computing its result.
    """
    code = getattr(function, "__code__", None)
    if code is not None and code.co_varnames[:1] == ("self",):
        function.is_compiled = True
        return function
    from ..expressions.compiled_function import CompiledFunction

    return CompiledFunction(function)


class Keyed(SealedKeys):
    """What keyed processes with one and with two inputs have in common."""

    per_worker: ClassVar[bool] = True
    declared_state: ClassVar[tuple[str, ...]] = ()

    _context: InstanceContext | None = None
    _watermark_ns: int = WATERMARK_NONE
    _key: Any = None
    _key_names: tuple[str, ...] = ()
    _at_hand: object = None
    """The row whose key is the one at hand; of a timer its key."""
    _key_of: object = _NO_ROW
    """What `_key` is the key of: it is only made if it is read."""
    _input_ended = False
    _looked_up: tuple[Batch, Slots] | None = None
    """Rows whose records a pass over the state has found."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._check_methods()
        own = {name: one for name, one in vars(cls).items() if isinstance(one, StateDeclaration)}
        if any(one.ttl is not None for one in own.values()):
            from .expiry import ttl_ns_of

            for one in own.values():
                ttl_ns_of(cls.__name__, one)
        cls.declared = {**cls.declared, **own}
        cls.declared_state = tuple(one.describe() for one in cls.declared.values())
        for name in own:
            if hasattr(Process, name) or hasattr(CoProcess, name) or hasattr(Keyed, name):
                msg = f"{cls.__name__}.{name}: processes have something of that name; rename it"
                raise TopologyError(msg)

    @classmethod
    def _check_methods(cls) -> None:
        """Refuse a user's class that defines what fires timers, or marks what is not compiled."""
        for method in _WORKER_METHODS:
            if method in vars(cls) and cls.__module__ != __name__:
                msg = f"{cls.__name__} defines {method}, which lets its timers fire: declare a"
                msg += " timer, quiet = state.timer(), and define on_timer"
                raise TopologyError(msg)
        for name, method in vars(cls).items():
            is_marked = callable(method) and getattr(method, "is_compiled", False)
            if is_marked and not (name == "on_row" and issubclass(cls, Process)):
                msg = (
                    f"{cls.__name__}.{name} is marked @whale.compiled, and only on_row of a"
                    " KeyedProcess is compiled: remove the mark"
                )
                raise TopologyError(msg)

    def open(self, context: InstanceContext) -> None:
        """Prepare the object; called once, before any row. An override calls it, too."""
        self._context = context
        self._watermark_ns = context.watermark_ns

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.declared:
            msg = f"{name!r} is declared state, which is not assigned: write self.{name}.set(…)"
            raise UsageError(msg)
        object.__setattr__(self, name, value)

    @property
    def key(self) -> Any:
        """The key of the row or timer at hand: a named tuple of the key columns.

        Raises:
            UsageError: there is none: the rows of a broadcast stream belong to all keys.
        """
        at_hand = self._at_hand
        if at_hand is not self._key_of:
            if not self._key_names:
                msg = (
                    "there is no key here: key is for on_timer and for methods that take a row with"
                    " a key, as on_row does"
                )
                raise UsageError(msg)
            row: Any = at_hand
            own = self.__dict__
            own["_key"] = self._known().key_of([row[name] for name in self._key_names])
            own["_key_of"] = at_hand
        return self._key

    def clear(self) -> None:
        """Give all state of the key at hand its initial values, which take no memory."""
        self._known().clear()

    def on_timer(self, timer: TimerHandle, out: Output) -> None:
        """React to a timer that fires; `timer is self.quiet` tells which.

        Rows emitted without a time have that of the timer, if it is one of event time.
        """
        msg = f"{type(self).__name__} declares a timer and lacks on_timer"
        raise NotImplementedError(msg)

    def on_watermark(self, watermark_ns: int, out: Output) -> None:
        """Let the timers of event time fire up to a watermark."""
        self._fire("event", watermark_ns, out)
        self._watermark_ns = watermark_ns

    def deadline_ns(self) -> int | None:
        """Return when the next timer of processing time may fire."""
        if self._state is None:
            return None
        self._state.settle()
        return self._state.earliest_ns("processing")

    def on_deadline(self, now_ns: int, out: Output) -> None:
        """Let the timers of processing time fire."""
        self._fire("processing", now_ns, out)

    def close(self, out: Output) -> None:
        """Let all timers fire that are still set: those of event time, then the others."""
        self._input_ended = True
        if self._state is not None:
            self._state.fire_all(self._timer_call(out))

    # -- saving and moving --------------------------------------------------------------------

    def dump(self, nodes: npt.NDArray[np.int64]) -> Iterator[Batch]:
        """Return the declared state of keys; what a class keeps in `self` beside is not in it."""
        if self._state is not None:
            yield from self._state.dump(nodes)

    def load(self, batch: Batch) -> None:
        """Take the declared state of keys; raise StateFullError if there is no memory for it."""
        state = self._state or self._begin(batch.select(self._opened().keys[0]))
        state.load(batch)

    def _beside(self) -> dict[str, Any]:
        """Return what a class keeps in `self` that is neither declared nor our own."""
        ours = {*vars(SealedKeys), *vars(Keyed), *vars(KeyedProcess), *_SEALED, *self.declared}
        return {name: value for name, value in vars(self).items() if name not in ours}

    @property
    def input_ended(self) -> bool:
        """Whether the input has ended, so that `on_timer` is called for what is still set.

        Timers of event time that it sets then still fire, those of processing time do not. One that
        sets itself again and again, as a heartbeat does, asks here whether to continue.
        """
        return self._input_ended

    def _fire(self, clock: str, until_ns: int, out: Output) -> None:
        if self._state is not None:
            self._state.fire(clock, until_ns, self._timer_call(out))

    def _timer_call(self, out: Output) -> TimerCall:
        from .keyed_state import TimerCall

        def on_timer(timer: TimerHandle, out: Output) -> None:
            call_method(self.on_timer, timer, out)

        return TimerCall(on_timer, out, self._bind)

    def _bind(self, values: Any) -> None:
        key = self._known().key_of(values)
        self.__dict__.update(_key=key, _key_of=key, _at_hand=key)

    def _known(self) -> KeyedState:
        if self._state is None:
            msg = f"{type(self).__name__} has not had a row yet, so it has no state of any key"
            raise UsageError(msg)
        return self._state

    def _opened(self) -> InstanceContext:
        if self._context is None:
            name = type(self).__name__
            msg = f"{name}.open does not call super().open(context), so it has no state"
            raise UsageError(msg)
        return self._context

    def _slots(self, batch: Batch, port: int) -> Slots:
        """Return the record of each row's key; the first batch tells the types of the keys."""
        if self._looked_up is not None and self._looked_up[0] is batch:
            return self._looked_up[1]
        keys = self._keys_of(port)
        if not keys:
            msg = f"the rows of this input of {type(self).__name__} belong to no key"
            raise UsageError(msg)
        if self._state is None:
            self._begin_by(batch, port)
        return self._known().slots(batch, keys)

    def learn_keys(self, batch: Batch, port: int) -> None:
        """Begin the state by the first rows, before a class that declares some gets them.

        Else `self.spent[self.slots(batch)]` would be the declaration, which Python reads first.
        """
        if self._state is None and self.declared and self._keys_of(port):
            self._begin_by(batch, port)

    def _keys_of(self, port: int) -> Sequence[str]:
        keys = self._opened().keys
        return keys[port] if port < len(keys) else ()

    def _begin_by(self, batch: Batch, port: int) -> None:
        keys = self._keys_of(port)
        names = dict(zip(keys, self._keys_of(0), strict=True))
        self._begin(batch.select(keys).rename(names))

    def _begin(self, first: Batch) -> KeyedState:
        """Make room for state, by the types of the key columns."""
        from .keyed_state import KeyedState

        context = self._opened()
        state = KeyedState(context, self.declared, first, context.keys[0], self._watermark_ns)
        self._know(state)
        return state

    def _bound_rows(self, batch: Batch, port: int, out: Output) -> Iterator[Row]:
        """Yield the rows; with each, its key is the one at hand, and its time that of `out`."""
        from ..rows import rows_of

        context = self._opened()
        names = self._keys_of(port)
        slots = self._slots(batch, port).tolist() if names else repeat(None)
        state = self._state
        cursor: list[int | None] = [None] if state is None else state.cursor
        times = repeat(None) if batch.times is None else batch.times.tolist()
        in_order = bool(names) and context.in_event_time_order
        set_for = state.event_times if in_order and state is not None else []
        timer_call = self._timer_call(out) if set_for else None
        moment = None if state is None else state.moment_of_rows
        own = vars(self)
        for slot, time_ns, row in zip(slots, times, rows_of(batch), strict=False):
            cursor[0] = slot
            own["_key_names"], own["_at_hand"] = names, row
            if time_ns is not None:
                for timer_times in set_for:
                    if timer_times[slot] < time_ns and timer_call is not None:
                        self._known().fire_before(slot, time_ns, timer_call)
                out.time_ns = time_ns
                if moment is not None:
                    moment.read_ns = moment.write_ns = time_ns
            yield row

    def _each_bound_row(self, call: Any, batch: Batch, port: int, out: Output) -> None:
        from ..rows import fail_at_row

        taken = 0
        try:
            for row in self._bound_rows(batch, port, out):
                if (returned := call(row, out)) is not None:
                    check_nothing(call, returned)
                taken += 1
        except BaseException as error:  # noqa: BLE001  # it is raised again
            fail_at_row(error, taken, batch)


class KeyedProcess(Keyed, Process):
    """A process with one logical instance per key: `stream.key_by("bidder").process(Streak)`.

    State is declared as attributes of the class (`whale_ray.state`) and belongs to the key of the
    row or timer at hand, `self.key`::

        class Streak(whale.KeyedProcess):
            bids = state.count()
            quiet = state.timer()

            def on_row(self, row, out):
                self.bids.add(1)
                self.quiet.set(row.date_time + timedelta(seconds=10))

            def on_timer(self, timer, out):
                out.emit_row(bidder=self.key.bidder, bids=self.bids.get())
                self.clear()

    For whole columns define `on_batch` in place of `on_row`: `slots = self.slots(batch)`, then
    `self.bids[slots]` are the values of the rows' keys.

    A key whose values are all initial takes no memory. A timer of event time fires once all rows
    up to its time have come, and before the next row of its key, if rows come in event-time order;
    else, and in the column form, with the watermark. At the end of the input, all that are set
    fire, and those of event time that they set, see `input_ended`.
    """

    def slots(self, batch: Batch) -> Slots:
        """Return a number for each row's key, int64 (num_rows,), which handles take: `[slots]`.

        They hold during this call of `on_batch`. Rows of one key have the same number.

        Raises:
            StateFullError: the worker's memory for state is used up.
        """
        return self._slots(batch, 0)

    _translation: ClassVar[Translation | None] = None
    _compiled: CompiledRows | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._translation = None
        if getattr(cls.on_row, "is_compiled", False):
            from .translation import translate

            cls._translation = translate(cls.__name__, cls.on_row, cls.declared)

    @property
    def stored_parts(self) -> StoredParts | None:
        """How `take_rows` divides rows by where their state lies; None before the first ones."""
        return None if self._state is None else self._state.parts

    def take_rows(self, batch: Batch, out: Output) -> None:
        """Call `on_batch`: for parts of rows, by where their state lies, if that is on the disk."""
        if self._state is None:
            call_method(self.on_batch, batch, out)
            return
        for part, slots in self._state.parts.of(batch):
            if part is not batch:
                out.time_ns = common_time(part)
            self._looked_up = None if slots is None else (part, slots)
            call_method(self.on_batch, part, out)
        self._looked_up = None

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Take the next rows. The default calls `on_row` for each."""
        if self._translation is None:
            self._each_bound_row(self.on_row, batch, 0, out)
        elif batch.num_rows:
            self._run_compiled(self._translation, batch, out)

    def _run_compiled(self, translation: Translation, batch: Batch, out: Output) -> None:
        slots = self._slots(batch, 0)
        if self._compiled is None:
            from .compiled_rows import CompiledRows

            self._compiled = CompiledRows(
                type(self).__name__, translation, self._known(), self.schema
            )
        context = self._opened()

        def bind(row: int) -> None:
            one = batch.select(context.keys[0]).slice(row, row + 1)
            self._bind([column.to_pylist()[0] for column in one.columns])

        in_order = context.in_event_time_order
        call = self._timer_call(out)._replace(bind=bind)
        self._compiled.run(batch, slots, in_order, call)

    @classmethod
    def missing(cls) -> str | None:
        """Return what the class must still define, in words, or None if it is complete."""
        if cls.on_batch is KeyedProcess.on_batch and cls.on_row is Process.on_row:
            return "on_row or on_batch"
        return missing_timer(cls)


def missing_timer(cls: type[Keyed]) -> str | None:
    """Return what a class with a timer must still define, in words, or None if it is complete."""
    timers = [name for name, one in cls.declared.items() if one.kind == "timer"]
    if timers and cls.on_timer is Keyed.on_timer:
        return f"on_timer, though it declares the timer {timers[0]!r}"
    return None
