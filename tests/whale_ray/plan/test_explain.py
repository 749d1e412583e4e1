"""Explanations: their text in full, and their HTML read back."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from whale_ray.configs.settings import Settings, TransportSettings
from whale_ray.configs.units import format_bytes
from whale_ray.operators.event_time import EventTime
from whale_ray.operators.groupings import (
    All,
    Forward,
    Global,
    Grouping,
    Key,
    LocalOrShuffle,
    Shuffle,
)
from whale_ray.plan.data_path import Devices
from whale_ray.plan.explain import explain
from whale_ray.plan.explanation import Explanation, Table
from whale_ray.plan.logical import Input, LogicalPlan, OperatorKind, OperatorNode
from whale_ray.plan.memory import FreeMemory

GIB = 1024**3


class Described:
    def __init__(self, text: str) -> None:
        self.text = text

    def describe(self) -> str:
        return self.text


class Matcher:
    """Processes are described by the name of their class."""


def node(
    name: str,
    verb: str,
    payload: object,
    *feeds: tuple[str, Grouping],
    parallelism: int | None = None,
    event_time: EventTime | None = None,
    per_worker: bool = False,
    line: int = 0,
) -> OperatorNode:
    kind = {
        "source": OperatorKind.SOURCE,
        "sink": OperatorKind.SINK,
        "process": OperatorKind.CO_PROCESS if len(feeds) == 2 else OperatorKind.PROCESS,
    }.get(verb, OperatorKind.TRANSFORM)
    return OperatorNode(
        id=name,
        kind=kind,
        payload=payload,  # type: ignore[arg-type] # only its describe() or name is looked at
        inputs=tuple(Input(up, port, grouping) for port, (up, grouping) in enumerate(feeds)),
        verb=verb,
        parallelism=parallelism,
        event_time=event_time,
        has_event_time=True,
        event_time_order=kind.is_stateful,
        order_reason="the default for rows with event times" if kind.is_stateful else "",
        per_worker=per_worker,
        location=f"app.py:{line}",
    )


PLAN = LogicalPlan(
    "ride-hailing",
    (
        node("positions", "source", Described("parquet gps/"),
             event_time=EventTime("at", 0), line=4),
        node("requests", "source", Described("parquet requests/"),
             event_time=EventTime("asked_at", 500), line=5),
        node("valid", "filter", Described("filter lat_e5 > 0"), ("positions", Forward()), line=6),
        node("seen", "sink", Described("csv <seen>/"), ("valid", Forward()), line=7),
        node("match", "process", Matcher, ("valid", Key(("vehicle_id",))), ("requests", All()),
             parallelism=16, per_worker=True, line=8),
        node("tidy", "map", Described("map by tidy"), ("match", Forward()), line=9),
        node("out", "sink", Described("parquet out/"), ("tidy", Forward()), line=10),
    ),
)  # fmt: skip


def explained(plan: LogicalPlan = PLAN, free_bytes: int = 8 * GIB) -> Explanation:
    return explain(plan, Settings(), 3, memory=lambda _settings: FreeMemory(None, free_bytes))


def test_the_text_in_full() -> None:
    expected = Path(__file__).with_name("explanation.txt").read_text(encoding="utf-8")
    assert f"{explained()}\n" == expected
    assert repr(explained()) == str(explained())


def test_columns_are_aligned() -> None:
    lines = str(explained()).splitlines()
    start = lines.index("Rings: 4") + 1
    shown = zip(lines[start : start + 3], ("each", "4 MiB", "4 MiB"), strict=True)
    assert {line.index(cell) for line, cell in shown} == {15}
    assert not any(line.endswith(" ") for line in lines)


def test_a_refusal_stands_in_place_of_the_sum() -> None:
    text = str(explained(free_bytes=1024**2))
    assert text.splitlines()[-1].startswith("  the job's 4 rings need 1.0 MiB at the least")
    assert "  0     3      ?     ?         1 worker" in text.splitlines()


def test_fused_branches_are_drawn_as_such() -> None:
    plan = LogicalPlan(
        "branches",
        (
            node("a", "source", Described("rows")),
            node("b", "map", Described("b"), ("a", Forward())),
            node("c", "map", Described("c"), ("a", Forward())),
            node("d", "sink", Described("d"), ("b", Forward())),
            node("e", "sink", Described("e"), ("c", Forward())),
        ),
    )
    text = str(explained(plan))
    assert "a → (b → d | c → e)" in text
    assert "Edges: none, everything is fused" in text
    assert "Rings: none" in text


def test_scattered_instances_are_listed() -> None:
    plan = LogicalPlan(
        "scattered",
        (
            node("a", "source", Described("rows")),
            node("b", "process", Matcher, ("a", Shuffle()), parallelism=2),
            node("c", "process", Matcher, ("b", Global())),
            node("d", "sink", Described("d"), ("c", Forward())),
        ),
    )
    text = str(explain(plan, Settings(), 8, memory=lambda _settings: FreeMemory(None, GIB)))
    assert "1 on each of workers 0, 4" in text
    assert "c → d" in text
    assert "worker 1" in text


class Cells(HTMLParser):
    """Collect the texts of table cells."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("td", "th"):
            self._inside = True
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.cells[-1] += data


def test_the_html_holds_every_cell_of_the_text_escaped() -> None:
    explanation = explained()
    parser = Cells()
    parser.feed(explanation._repr_html_())
    expected = [
        cell
        for table in explanation.tables
        for row in (table.headers, *table.rows)
        for place, cell in enumerate(row)
        if cell and any(other[place] for other in table.rows)  # empty columns are left out
    ]
    assert [cell for cell in parser.cells if cell] == expected
    assert "<seen>" not in explanation._repr_html_()


def test_the_html_sets_no_colour_of_its_own() -> None:
    html = explained()._repr_html_()
    assert not re.search(r"#[0-9a-fA-F]{3,6}\b(?!\))", html.replace("url(#", "url("))
    assert not re.search(r"\b(white|black)\b(?!-)", html)


def test_the_diagram_shows_stages_and_edges() -> None:
    root = ElementTree.fromstring(explained().diagram_svg)
    space = "{http://www.w3.org/2000/svg}"
    texts = [element.text for element in root.iter(f"{space}text")]
    assert len(root.findall(f"{space}rect")) == 3
    assert len(root.findall(f"{space}path")) == 2
    for wanted in ("stage 2  ×16", "match", "tidy", "key by vehicle_id", "all"):
        assert wanted in texts
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for rect in root.findall(f"{space}rect"):
        assert float(rect.attrib["x"]) + float(rect.attrib["width"]) < width
        assert float(rect.attrib["y"]) + float(rect.attrib["height"]) < height


def test_columns_without_any_text_are_left_out() -> None:
    table = Table("title", ("a", "b"), (("1", ""), ("2", "")))
    assert table.to_text() == "title\n  a\n  1\n  2"
    assert "<th" in table.to_html()
    assert ">b<" not in table.to_html()


def test_bytes_are_readable() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1024, 4 * 1024**2, int(1.5 * GIB))] == [
        "0 B", "1023 B", "1 KiB", "4 MiB", "1.5 GiB",
    ]  # fmt: skip


NONE_HERE = Devices((), "no RDMA device on this machine")
ONE_HERE = Devices(("rxe0",))


@pytest.mark.parametrize(
    ("between_hosts", "here", "choice", "why"),
    [
        ("tcp", ONE_HERE, "tcp", "tcp, as transport.between_hosts says"),
        (
            "auto",
            ONE_HERE,
            "verbs WRITE, or tcp to hosts without a device",
            "RDMA verbs, data by WRITE, where both have a usable device, else tcp; this machine "
            "has rxe0",
        ),
        (
            "auto",
            NONE_HERE,
            "tcp",
            "RDMA verbs, data by WRITE, where both have a usable device, else tcp; not from this "
            "machine: no RDMA device on this machine",
        ),
        ("verbs", ONE_HERE, "verbs WRITE", "RDMA verbs, data by WRITE; this machine has rxe0"),
        (
            "verbs",
            NONE_HERE,
            "verbs WRITE",
            "RDMA verbs, data by WRITE; not from this machine: no RDMA device on this machine",
        ),
    ],
)
def test_each_edge_shows_its_planned_transport(
    between_hosts: str, here: Devices, choice: str, why: str
) -> None:
    plan = LogicalPlan(
        "places",
        (
            node("a", "source", Described("rows"), parallelism=2),
            node("b", "map", Described("b"), ("a", LocalOrShuffle()), parallelism=2),
            node("c", "process", Matcher, ("b", All()), parallelism=2),
            node("d", "sink", Described("d"), ("c", Forward())),
        ),
    )
    settings = Settings().with_overrides(
        {
            "runtime.hosts": 2,
            "transport.between_hosts": between_hosts,
            "transport.verbs_data": "write",
        }
    )
    made = explain(
        plan,
        settings,
        2,
        memory=lambda _settings: FreeMemory(None, GIB),
        devices=lambda _transport: here,
    )
    edges, hosts = (
        next(table for table in made.tables if table.title.startswith(title))
        for title in ("Edges", "Hosts")
    )
    told = dict(zip((row[1] for row in edges.rows), (row[4] for row in edges.rows), strict=True))
    assert told == {
        "a → b": "memory of each worker",
        "b → c": f"shared memory; between hosts {choice}",
    }
    assert hosts.note == f"links between hosts: {why}"


def test_devices_are_looked_for_only_where_there_are_several_hosts() -> None:
    def fail(_transport: TransportSettings) -> Devices:
        raise AssertionError("nobody asked")

    explain(PLAN, Settings(), 3, memory=lambda _settings: FreeMemory(None, GIB), devices=fail)
