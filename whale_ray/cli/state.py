"""The command `state`: which checkpoints a folder has, what operators knew, and what changed."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..configs.json_text import json_text
from .tables import table

if TYPE_CHECKING:
    from ..api.state_listing import EpochEntry, OperatorEntry
    from ..state.epochs.checkpoint_store import CheckpointStore

ROWS_SHOWN = 20


def add_state(commands: Any) -> None:
    """Add `state`."""
    command = commands.add_parser(
        "state", help="show the checkpoints in a folder, the state in them, and what changed"
    )
    command.add_argument(
        "path", metavar="PATH", help="a folder of checkpoints, a path or a URL, or one of them"
    )
    command.add_argument(
        "action",
        nargs="?",
        default="list",
        choices=("list", "show", "diff"),
        help="list (the default), show OPERATOR, diff EPOCH EPOCH",
    )
    command.add_argument(
        "names", nargs="*", default=[], metavar="NAME", help="an operator; two epochs"
    )
    command.add_argument("--epoch", default="latest", help="of `list` and `show`: a number")
    command.add_argument("--name", default=None, help="of `show`: one declared value")
    command.add_argument(
        "--rows",
        type=_number,
        default=ROWS_SHOWN,
        metavar="N",
        help="of `show`: rows (%(default)s)",
    )
    command.add_argument("--json", action="store_true", help="one JSON object")
    command.set_defaults(function=_state)


def _state(parsed: argparse.Namespace) -> int:
    from ..configs.errors import UsageError

    wanted = {"list": 0, "show": 1, "diff": 2}[parsed.action]
    if len(parsed.names) != wanted:
        usage = {"list": "list", "show": "show OPERATOR", "diff": "diff EPOCH EPOCH"}
        given = len(parsed.names)
        names = "name" if wanted == 1 else "names"
        msg = f"whale-ray state PATH {usage[parsed.action]} takes {wanted} {names}, not {given}"
        raise UsageError(msg)
    action = {"list": _list, "show": _show, "diff": _diff}[parsed.action]
    found, lines = action(parsed)
    sys.stdout.write(f"{json_text(found, default=str)}\n" if parsed.json else "\n".join(lines))
    if not parsed.json:
        sys.stdout.write("\n")
    if parsed.action == "list":
        _fail_if_damaged(found)
    return 0


# --- list -----------------------------------------------------------------------------------------


def _list(parsed: argparse.Namespace) -> tuple[Any, list[str]]:
    from ..api.state_listing import epochs_in
    from ..api.state_reading import find_epoch, open_store
    from ..configs.errors import DamagedCheckpointError

    store, named = open_store(parsed.path)
    epoch = named if named is not None and parsed.epoch == "latest" else parsed.epoch
    epochs = epochs_in(store)
    if not epochs:
        find_epoch(store, epoch)  # says that there are none
    lines = [f"checkpoints in {store.url}, the oldest first", *table([*map(_row, epochs)])]
    lines += [f"  {one.damage}" for one in epochs if one.damage]
    found: dict[str, Any] = {
        "url": store.url,
        "checkpoints": [dataclasses.asdict(one) for one in epochs],
    }
    if epoch == "latest" and epochs[-1].damage:
        return found, lines
    try:
        of_epoch, lines_of_epoch = _operators_at(store, epoch)
    except DamagedCheckpointError as error:  # of its manifest; the others are listed all the same
        damage = str(error)
        if any(one.damage and damage.startswith(one.damage) for one in epochs):
            return found, lines
        return found | {"damage": damage}, [*lines, f"  {damage}"]
    return found | of_epoch, [*lines, "", *lines_of_epoch]


def _operators_at(store: CheckpointStore, epoch: str) -> tuple[dict[str, Any], list[str]]:
    """Return a checkpoint's operators, or its damage: as plain values, and as lines."""
    from ..api.state_listing import operators_of
    from ..api.state_reading import find_epoch, read_epoch
    from ..configs.errors import DamagedCheckpointError
    from ..transport.clock import SystemClock

    damage = ""
    entries: list[OperatorEntry] = []
    try:
        name, manifest, entries = read_epoch(
            store, epoch, lambda name, found: (name, found, operators_of(store, found))
        )
    except DamagedCheckpointError as error:  # the list is what one looks for another checkpoint in
        name, manifest = find_epoch(store, epoch)
        damage = str(error)
    operators = [dataclasses.asdict(one) for one in entries]
    age = _duration(SystemClock().wall_ns() // 1_000_000 - manifest.created_ms)
    lines = [f"checkpoint {manifest.epoch}, {age} old, {store.url}/{name}"]
    history = " ← ".join(f"{job} at {at}" for job, at in reversed(manifest.lineage.restored))
    if history:
        lines.append(f"written by {manifest.lineage.job}, which went on from {history}")
    shown = [{k: v for k, v in one.items() if k != "position"} for one in operators]
    lines += [f"  {damage}"] if damage else []
    lines += table([one | {"nbytes": _bytes(one["nbytes"])} for one in shown]) if shown else []
    return {"epoch": manifest.epoch, "operators": operators, "damage": damage}, lines


def _fail_if_damaged(found: dict[str, Any]) -> None:
    """Raise DamagedCheckpointError if a list has damage in it, so that the exit code says so."""
    from ..configs.errors import DamagedCheckpointError

    is_missing = "damage" in found and "operators" not in found  # the newest has no manifest
    all_of = len(found["checkpoints"]) + is_missing
    number = sum(bool(one["damage"]) for one in (*found["checkpoints"], found) if "damage" in one)
    if number:
        remedy = (
            "look at the operators of another one (list --epoch …): if it is whole, name its"
            f" manifest (restore='{found['url']}/manifests/…')"
            if number < all_of
            else "bring its files back, or run the job again with another folder"
        )
        msg = (
            f"{number} of {_counted(all_of, 'checkpoint')} in {found['url']}"
            f" {'is' if number == 1 else 'are'} damaged, as listed: {remedy}"
        )
        raise DamagedCheckpointError(msg)


def _row(one: EpochEntry) -> dict[str, Any]:
    if one.damage:
        what = "damaged"
    else:
        what = " ".join(filter(None, ["savepoint" if one.savepoint else "", one.ended]))
    return {
        "epoch": one.epoch,
        "job": one.job,
        "topology": one.topology,
        "written": _time(one.created_ms) if one.created_ms else "-",
        "size": _bytes(one.nbytes),
        "new": _bytes(one.new_nbytes),
        "": what,
    }


# --- show and diff --------------------------------------------------------------------------------


def _show(parsed: argparse.Namespace) -> tuple[Any, list[str]]:
    from ..api.state_reading import open_store, read_epoch, state_of_operator, value_of

    store, named = open_store(parsed.path)
    epoch = named if named is not None and parsed.epoch == "latest" else parsed.epoch
    (operator,) = parsed.names
    manifest, found = read_epoch(
        store, epoch, lambda _, found: (found, state_of_operator(store, found, operator))
    )
    if parsed.name is not None:
        found = value_of(found, manifest, operator, parsed.name)
    rows = found.slice(0, parsed.rows).to_pylist() if found.num_columns else []
    record = manifest.operators.get(operator, {})
    keys = " and ".join("+".join(key) for key in record.get("key", ()) if key)
    what = {
        "source": _counted(found.num_rows, "position"),
        "sink": _counted(found.num_rows, "staged part"),
    }.get(
        record.get("kind", ""), _counted(found.num_rows, "row") + (f", by {keys}" if keys else "")
    )
    keeps_none = record.get("level") == "" and not found.num_rows  # a table of a join has rows
    if keeps_none and record.get("kind") not in ("source", "sink"):
        what = "it keeps no state"
    lines = [f"{operator} at checkpoint {manifest.epoch}: {what}"]
    if record.get("kind") == "source":  # a table would clip them
        lines += [f"  instances {_listed(row['instances'])}: {row['position']}" for row in rows]
    elif rows:
        lines += table(rows, ".6g")
    if found.num_rows > len(rows):
        lines.append(f"  … and {found.num_rows - len(rows):,} more (--rows N)")
    said = {"operator": operator, "epoch": manifest.epoch, "total": found.num_rows, "rows": rows}
    return said, lines


def _diff(parsed: argparse.Namespace) -> tuple[Any, list[str]]:
    from ..api.state_listing import diff_of
    from ..api.state_reading import open_store, read_epoch

    store: CheckpointStore = open_store(parsed.path)[0]
    one, other = parsed.names
    first, second, diffs = read_epoch(
        store,
        one,
        lambda _, first: read_epoch(
            store, other, lambda _, second: (first, second, diff_of(store, first, second))
        ),
    )
    found = [dataclasses.asdict(diff) for diff in diffs]
    lines = [f"keys by operator, from checkpoint {first.epoch} to {second.epoch}", *table(found)]
    return {"from": first.epoch, "to": second.epoch, "operators": found}, lines


# --- values ---------------------------------------------------------------------------------------


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _number(text: str) -> int:
    """Return a number of rows that an option names."""
    if not text.isdecimal():
        msg = f"{text!r} is not a number of rows, such as {ROWS_SHOWN}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def _bytes(nbytes: int) -> str:
    size = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1_000:
            return f"{size:.3g} {unit}"
        size /= 1_000
    return f"{size:.3g} TB"


def _duration(ms: int) -> str:
    seconds = max(0, ms) // 1_000
    for unit, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds // unit} {name}"
    return _counted(seconds, "second")
