"""Mistakes with process and connect are found while building, with the fix."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import whale_ray as whale
from tests.whale_ray.api.mistakes import Mistake, Rig, assert_message


class Count(whale.Process):
    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        pass


class Match(whale.CoProcess):
    def on_left(self, batch: whale.Batch, out: whale.Output) -> None:
        pass

    def on_right(self, batch: whale.Batch, out: whale.Output) -> None:
        pass


class Counts(whale.Process):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        pass


class Yields(whale.Process):
    def on_row(self, row: Any, out: Any) -> Any:
        yield {"n": 1}


class AsyncOpen(whale.Process):
    async def open(self, context: Any) -> None:  # type: ignore[override]  # the mistake tested
        """Prepare nothing."""

    def on_row(self, row: Any, out: Any) -> None:
        """Take nothing."""


class HalfMatch(whale.CoProcess):
    def on_left(self, batch: whale.Batch, out: whale.Output) -> None:
        pass


class NoBatch(whale.Process):
    pass


def broken_factory() -> whale.Process:
    raise ValueError("no model")


def several(row: Any) -> Any:
    yield row


MISTAKES: dict[str, Mistake] = {
    "process without a grouping": (
        lambda rig: rig.fixes.process(Count, id="m"),
        "operator 'fixes': process needs to know which instance gets which row: group the stream"
        " right before it, with key_by('column'), shuffle(), broadcast() or global_()",
    ),
    "connect without a grouping": (
        lambda rig: rig.fixes.connect(rig.timed.broadcast()),
        "operator 'fixes': connect needs both streams grouped: call key_by('column') or broadcast()"
        " on this one first",
    ),
    "connect to a stream without a grouping": (
        lambda rig: rig.fixes.broadcast().connect(rig.timed),
        "operator 'fixes': connect needs both streams grouped: call key_by('column') or broadcast()"
        " on 'timed' first",
    ),
    "connect to something else": (
        lambda rig: rig.fixes.broadcast().connect("timed"),
        "operator 'fixes': connect takes a grouped stream, such as other.broadcast(), not 'timed'",
    ),
    "connect across topologies": (
        lambda rig: rig.fixes.broadcast().connect(rig.foreign.broadcast()),
        "operator 'fixes': connect joins streams of one topology, but 'fixes' belongs to 't' and"
        " 'fixes' to another one named 'u': make both with the same Topology",
    ),
    "connect with keys of different length": (
        lambda rig: rig.fixes.key_by("at").connect(rig.timed.key_by("at", "lat_e5")),
        "operator 'fixes': connect brings equal keys together, but 'fixes' is keyed by 1 columns"
        " (at) and 'timed' by 2 (at, lat_e5): key both by as many",
    ),
    "connect with keys of different types": (
        lambda rig: rig.fixes.key_by("vehicle_id").connect(rig.timed.key_by("lat_e5")),
        "operator 'fixes': connect brings equal keys together, but 'vehicle_id' is string and"
        " 'lat_e5' is int32, which are never equal: cast one with with_column before key_by",
    ),
    "map on connected streams": (
        lambda rig: rig.fixes.broadcast().connect(rig.timed.broadcast()).map(dict),
        "operator 'fixes': map does not take two streams: call .process(…) on the connected streams"
        " first, or .map(…) on each of them before connect",
    ),
    "an object instead of a class": (
        lambda rig: rig.fixes.shuffle().process(Counts(2), id="m"),
        "operator 'm': process takes the class, not an object of it, since every instance needs its"
        " own: pass Counts, or lambda: Counts(…)",
    ),
    "a class with arguments": (
        lambda rig: rig.fixes.shuffle().process(Counts, id="m"),
        "operator 'm': Counts needs arguments: pass lambda: Counts(…) with its arguments",
    ),
    "a partial that lacks arguments": (
        lambda rig: rig.fixes.shuffle().process(functools.partial(Counts), id="m"),
        "operator 'm': Counts needs arguments: every instance is made by calling it without any",
    ),
    "a function instead of a class": (
        lambda rig: rig.fixes.shuffle().process(several, id="m"),
        "operator 'm': several needs arguments: for a function of rows or columns use map, filter"
        " or flat_map",
    ),
    "a name instead of a class": (
        lambda rig: rig.fixes.shuffle().process("Count", id="m"),
        "operator 'm': process takes a class derived from whale.Process, not 'Count'",
    ),
    "a class that is no process": (
        lambda rig: rig.fixes.shuffle().process(Rig, id="m"),
        "operator 'm': Rig is not derived from whale.Process: derive it from that",
    ),
    "a factory that makes something else": (
        lambda rig: rig.fixes.shuffle().process(lambda: Count, id="m"),
        "operator 'm': lambda() returns the class Count: it must return an object of a class"
        " derived from whale.Process",
    ),
    "a factory that fails": (
        lambda rig: rig.fixes.shuffle().process(broken_factory, id="m"),
        "operator 'm': broken_factory() raised ValueError: no model",
    ),
    "a class that lacks on_batch": (
        lambda rig: rig.fixes.shuffle().process(NoBatch, id="m"),
        "operator 'm': NoBatch does not define on_batch or on_row",
    ),
    "a method that yields": (
        lambda rig: rig.fixes.shuffle().process(Yields, id="m"),
        "operator 'm': Yields.on_row contains yield, so calling it would run none of it: write it"
        " with def; emit rows with out.emit_row(column=value, …), and return nothing",
    ),
    "an async method": (
        lambda rig: rig.fixes.shuffle().process(AsyncOpen, id="m"),
        "operator 'm': AsyncOpen.open is an async function, so calling it would run none of it:"
        " write it with def; open prepares the instance and has no rows to send; return nothing",
    ),
    "a class that lacks on_right": (
        lambda rig: rig.fixes.shuffle().connect(rig.timed.shuffle()).process(HalfMatch, id="m"),
        "operator 'm': HalfMatch does not define on_right",
    ),
    "a Process for two streams": (
        lambda rig: rig.fixes.shuffle().connect(rig.timed.shuffle()).process(Count, id="m"),
        "operator 'm': Count is a whale.Process, but two streams are connected: derive it from"
        " whale.CoProcess and define on_left and on_right",
    ),
    "a CoProcess for one stream": (
        lambda rig: rig.fixes.shuffle().process(Match, id="m"),
        "operator 'm': Match is a whale.CoProcess, which takes two streams: .connect(…) the other"
        " one first, or derive it from whale.Process",
    ),
    "order without event times": (
        lambda rig: rig.plain.shuffle().process(Count, id="m", event_time_order=True),
        "operator 'm': rows cannot be put in event-time order, since source 'fixes' has no event"
        " times: give it event_time='column', or pass event_time_order=False here",
    ),
    "event times on one side": (
        lambda rig: rig.timed.shuffle().connect(rig.plain.shuffle()).process(Match, id="m"),
        "operator 'm': rows cannot be put in event-time order, since source 'fixes' has no event"
        " times: give it event_time='column', or pass event_time_order=False here",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_message_names_the_thing_and_the_fix(mistake: str) -> None:
    assert_message(*MISTAKES[mistake])
