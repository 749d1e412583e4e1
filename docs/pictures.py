"""The drawings of the documentation, as SVG made from the sources.

- `packages`: every package, in layers; where a package stands follows from its imports.
- `way_of_a_batch`: what a batch meets from a source to a sink on another host, with the names that
  stand for each step in the code; tests look these names up.
- `one_to_many`: what happens to one row for all instances.

Colours are those of the site's theme.
"""

from __future__ import annotations

import ast
import html
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("configs", "transport", "state", "operators")

STYLE = """
text{font:13px sans-serif;fill:var(--md-default-fg-color,#222)}
text.name{font:600 14px monospace}
text.note{font-size:12px;fill:var(--md-default-fg-color--light,#555)}
text.code{font:12px monospace;fill:var(--md-typeset-a-color,#345)}
text.title{font-weight:600}
text.end{text-anchor:end}
text.middle{text-anchor:middle}
.box{fill:var(--md-code-bg-color,#f5f5f5);stroke:var(--md-default-fg-color--light,#777)}
.host{fill:none;stroke:var(--md-default-fg-color--lighter,#aaa);stroke-dasharray:5 4}
.ring{fill:var(--md-accent-fg-color--transparent,#dde)}
.ring{stroke:var(--md-default-fg-color--light,#777)}
.arrow{fill:none;stroke:var(--md-default-fg-color,#222);stroke-width:1.4;marker-end:url(#head)}
"""
HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
    ' orient="auto"><path d="M0 0 8 4 0 8z" fill="var(--md-default-fg-color,#222)"/>'
    "</marker></defs>"
)


def svg(width: int, height: int, title: str, shapes: list[str]) -> str:
    """Return a drawing; a title for readers who cannot see it."""
    style = "".join(f"svg.drawing {rule}" for rule in STYLE.split("\n") if rule)
    size = f'viewBox="-1 -1 {width + 2} {height + 2}" style="width:100%;max-width:{width}px"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" role="img" {size}>'
        f"<title>{html.escape(title)}</title><style>{style}</style>{HEAD}{''.join(shapes)}</svg>"
    )


def box(x: int, y: int, width: int, height: int, kind: str = "box") -> str:
    """Return a rectangle."""
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'


def text(x: int, y: int, words: str, kind: str = "") -> str:
    """Return a line of text."""
    return f'<text class="{kind}" x="{x}" y="{y}">{html.escape(words)}</text>'


def arrow(path: str) -> str:
    """Return an arrow along an SVG path."""
    return f'<path class="arrow" d="{path}"/>'


# --- the packages ------------------------------------------------------------------------------


def package_folders() -> dict[str, Path]:
    """Return the folder of every package: the four parts, and the packages of `whale_ray/`."""
    inner = sorted(path.parent for path in (ROOT / "whale_ray").glob("*/__init__.py"))
    found = {name: ROOT / name for name in PARTS}
    return found | {path.name: path for path in inner if path.name not in PARTS}


def imports(path: Path) -> Iterator[str]:
    """Yield the modules, absolute within `whale_ray`, that a file imports when it is loaded."""
    inside = path.relative_to(ROOT).parts
    package = list(inside if inside[0] == "whale_ray" else ("whale_ray", *inside))[:-1]
    waiting: list[ast.stmt] = list(ast.parse(path.read_text(encoding="utf-8")).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            yield ".".join([*above, *(node.module or "").split(".")]).strip(".")
            yield from (
                ".".join([*above, node.module or "", one.name]).replace("..", ".")
                for one in node.names
            )
        elif isinstance(node, ast.Try | ast.With):
            waiting += node.body


def package_imports() -> dict[str, set[str]]:
    """Return which packages each one imports when it is loaded (not types, not what is late)."""
    folders = package_folders()
    found: dict[str, set[str]] = {}
    for package, folder in folders.items():
        names = {name for path in folder.rglob("*.py") for name in imports(path)}
        parts = {name.split(".")[1] for name in names if name.startswith("whale_ray.")}
        found[package] = (parts & set(folders)) - {package}
    return found


def layers(needs: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the packages, lowest first; each imports lower ones, or those of its own circle."""
    reached = {package: _reachable(package, needs) for package in needs}
    depth: dict[str, int] = {}

    def depth_of(package: str) -> int:
        if package not in depth:
            circle = {other for other in reached[package] if package in reached[other]} | {package}
            below = set().union(*(needs[one] for one in circle)) - circle
            for one in circle:
                depth[one] = 0
            level = 1 + max(map(depth_of, below), default=-1)
            for one in circle:
                depth[one] = level
        return depth[package]

    found: list[list[str]] = [[] for _ in range(1 + max(map(depth_of, needs)))]
    for package in needs:
        found[depth[package]].append(package)
    return found


def _reachable(package: str, needs: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(needs[package])
    while waiting:
        if (one := waiting.pop()) not in found:
            found.add(one)
            waiting += needs[one]
    return found


def packages() -> str:
    """Draw every package as a box, in layers."""
    width, gap, y = 900, 12, 0
    folders = package_folders()
    shapes: list[str] = []
    for level in layers(package_imports())[::-1]:
        each = (width - gap * (len(level) - 1)) // len(level)
        notes = [textwrap.wrap(_summary(folders[package]), (each - 24) // 6) for package in level]
        height = 40 + 16 * max(map(len, notes))
        for column, (package, note) in enumerate(zip(level, notes, strict=True)):
            x = column * (each + gap)
            shapes += [box(x, y, each, height), text(x + 12, y + 22, f"{package}/", "name")]
            shapes += [text(x + 12, y + 42 + 16 * i, line, "note") for i, line in enumerate(note)]
        y += height + gap
    title = "The packages of whale-ray in layers, each importing packages of lower layers only"
    return svg(width, y - gap, title, shapes)


def _summary(folder: Path) -> str:
    """Return the first sentence of a package's docstring."""
    module = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(module) or "").partition("\n")[0].replace("`", "")


# --- the way of a batch ---------------------------------------------------------------------

Step = tuple[str, str, str]
"""What it is called, what it does, and its class or function in the code."""

SENDING: tuple[Step, ...] = (
    ("source", "reads rows; event times, watermark", "SourceNode"),
    ("fused operators", "plain calls with the same batch", "TransformNode"),
    ("slicer", "cuts slices by size (MMS), time (WTL)", "StreamSlicer"),
    ("edge writer", "groups by instance, encodes", "EdgeWriter"),
)
RECEIVING: tuple[Step, ...] = (
    ("sink", "writes parts, published at the end", "SinkNode"),
    ("process", "the user's on_row or on_batch", "ProcessNode"),
    ("event-time buffer", "until the watermark passes", "EventTimeBuffer"),
    ("edge reader", "views of columns, by instance", "EdgeReader"),
)
RING: Step = (
    "ring in shared memory",
    "written once, read in place by every worker",
    "RingProducer",
)
MIRROR: Step = ("mirror of the ring", "the same bytes, read in place", "MirrorRing")
RELAYS: tuple[Step, ...] = (
    ("relay", "sends whole frames", "RingTap"),
    ("relay", "receives, then forwards", "Relay"),
)


def way_of_a_batch() -> str:
    """Draw what a batch meets from its source to a sink on the same host and on another one."""
    columns = (
        (12, "worker 0", SENDING),
        (314, "worker 1", RECEIVING),
        (632, "worker 2", RECEIVING),
    )
    shapes = [box(0, 22, 588, 486, "host"), text(8, 14, "host-0", "title")]
    shapes += [box(620, 22, 280, 486, "host"), text(628, 14, "host-1", "title")]
    for x, worker, steps in columns:
        shapes.append(text(x + 4, 46, worker, "note"))
        for number, step in enumerate(steps):
            shapes += _step(x, 56 + 68 * number, step)
        down = steps is SENDING
        for top in range(112, 112 + 3 * 68, 68):
            shapes.append(arrow(f"M{x + 130} {top if down else top + 12}v{11 if down else -11}"))
    shapes += _step(12, 350, RING, 562, "ring") + _step(632, 350, MIRROR, 260, "ring")
    shapes += [arrow("M142 316v33"), arrow("M444 350v-33"), arrow("M762 350v-33")]
    shapes += _step(314, 440, RELAYS[0]) + _step(632, 440, RELAYS[1])
    shapes += [arrow("M444 406v33"), arrow("M762 440v-33"), arrow("M574 468h57")]
    shapes.append(text(603, 526, "TCP or RDMA verbs", "note middle"))
    title = "A batch from a source, by a ring, to instances on the same host and on another host"
    return svg(900, 532, title, shapes)


def _step(x: int, y: int, step: Step, width: int = 260, kind: str = "box") -> list[str]:
    """Return a step's box: its name and its class in the first line, what it does in the second."""
    what, note, code = step
    return [
        box(x, y, width, 56, kind),
        text(x + 10, y + 22, what, "title"),
        text(x + width - 10, y + 22, code, "code end"),
        text(x + 10, y + 43, note, "note"),
    ]


# --- one to many ----------------------------------------------------------------------------


def one_to_many() -> str:
    """Draw a row for four instances: sent to each by itself, and written once."""
    shapes = [text(0, 14, "A message per instance: encoded four times", "title")]
    shapes += [text(470, 14, "whale-ray: encoded once, read in place", "title")]
    shapes += _named(0, 92, 110, "source") + _named(470, 92, 90, "source")
    for number in range(4):
        y = 32 + 44 * number
        shapes += _named(290, y, 120, f"instance {number}")
        shapes.append(arrow(f"M112 {109}L288 {y + 17}"))
    shapes += [box(600, 70, 74, 78, "ring"), text(637, 106, "ring in", "middle")]
    shapes += [text(637, 122, "memory", "middle"), arrow("M562 109h36")]
    for worker in range(2):
        y = 26 + 94 * worker
        shapes += [box(730, y, 170, 84, "host"), text(740, y + 16, f"worker {worker}", "note")]
        shapes.append(arrow(f"M676 109L728 {y + 42}"))
        for number in range(2):
            shapes += _named(740 + 78 * number, y + 30, 72, f"inst. {2 * worker + number}")
    title = "A row for four instances: sent four times, or encoded once into a ring"
    return svg(902, 214, title, shapes)


def _named(x: int, y: int, width: int, name: str) -> list[str]:
    """Return a box with a name in its middle."""
    return [box(x, y, width, 34), text(x + width // 2, y + 22, name, "middle")]
