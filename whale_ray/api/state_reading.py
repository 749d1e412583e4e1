"""Reads the state of operators from checkpoints: what jobs knew, without running them."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..configs.errors import DamagedCheckpointError, InputError
from ..operators.arguments import check_type
from ..operators.snapshot_files import chunk_from_bytes
from ..state.budget import StateBudget
from ..state.epochs.checkpoint_store import CheckpointStore
from ..state.epochs.manifest import Manifest
from ..state.epochs.store_names import MANIFESTS, ManifestName

if TYPE_CHECKING:
    import pyarrow as pa

    from ..transport.wire.batch import Batch

__all__ = [
    "find_epoch",
    "open_store",
    "operator_rows",
    "read_epoch",
    "read_state",
    "state_of_operator",
    "value_of",
]

LATEST = "latest"

T = TypeVar("T")

_TRIES_MAX = 100
_KEYS_BYTES_MAX = 8 << 30
"""What the keys that have changed since an operator's first version may take while it is read."""


def read_state(
    url: str | Path, operator: str, name: str | None = None, epoch: int | str = LATEST
) -> pa.Table:
    """Return what an operator knew at a checkpoint, as an Arrow table; no job runs for it.

    A process with declared state gives a row per key: the key columns, then a column for each
    declared value. Lists and maps are Arrow's; a timer is when it fires, null if it is not set;
    a value with a `ttl` may still be there when that has passed. Other operators give the rows
    that they keep, such as a window's groups, with what they keep beside their keys. A source gives
    a row per object that reads: its instances and its position, as JSON; a sink a row for each
    portion that it has staged: instance, number of rows, and path if it is a file.

    Args:
        url: the folder of checkpoints, a path or a URL, or one checkpoint in it.
        operator: its id.
        name: of a declared value: the table has the key columns and `value` alone.
        epoch: a number, the name of a manifest, or "latest".

    Raises:
        UsageError: an argument has another type.
        InputError: there is no such checkpoint, operator or name, or the operator's state is
            opaque; or the folder cannot be read.
        DamagedCheckpointError: a file of the checkpoint is missing, cut short or damaged.
        ResourceError: a package that this kind of URL needs is not installed.
    """
    for argument, passed, kinds, wanted in (
        ("url", url, (str, os.PathLike), "a path or a URL"),
        ("operator", operator, str, "the id of an operator"),
        ("name", name, (str, type(None)), "the name of a declared value"),
        ("epoch", epoch, (int, str), "a number, the name of a manifest, or 'latest'"),
    ):
        check_type("read_state", argument, passed, kinds, wanted)
    store, named = open_store(str(url))
    epoch = named if named is not None and epoch == LATEST else epoch
    manifest, table = read_epoch(
        store, epoch, lambda _, found: (found, state_of_operator(store, found, operator))
    )
    return table if name is None else value_of(table, manifest, operator, name)


def value_of(table: pa.Table, manifest: Manifest, operator: str, name: str) -> pa.Table:
    """Return the key columns of an operator's state, and a declared value as `value`.

    Raises:
        InputError: the operator keeps no such value.
    """
    keys = _keys_of(manifest, operator)
    if name not in table.column_names or name in keys:
        others = [column for column in table.column_names if column not in keys]
        msg = f"operator {operator!r} keeps no {name!r}; it keeps {_listed(others)}"
        raise InputError(msg)
    kept = [column for column in table.column_names if column in keys]
    return table.select([*kept, name]).rename_columns([*kept, "value"])


def open_store(path: str) -> tuple[CheckpointStore, str | None]:
    """Return the store at a path or URL, and the manifest that the path names, None if it does not.

    Raises:
        InputError: the URL is not understood, or the folder cannot be read.
        ResourceError: a package that this kind of URL needs is not installed.
    """
    folder, slash, name = path.rpartition(f"/{MANIFESTS}/")
    if not slash:
        return CheckpointStore.at(path), None
    manifest = f"{MANIFESTS}/{name}"
    if ManifestName.of(manifest) is None:  # a mistake, or a folder of the user's of that name
        store = CheckpointStore.at(path)
        if store.manifests():
            return store, None
    return CheckpointStore.at(folder or slash[:1]), manifest


def find_epoch(store: CheckpointStore, epoch: int | str) -> tuple[str, Manifest]:
    """Return a checkpoint: its manifest's name, and what that says.

    Args:
        store: where it is.
        epoch: a number, the name of a manifest, or "latest". Of several with one number, which
            were restored from one another, the newest is taken.

    Raises:
        InputError: there is none, or the folder cannot be read.
        DamagedCheckpointError: its manifest is missing, cut short or damaged.
    """
    name = _name_of(store, epoch)
    return name, store.read_manifest(name)


def _name_of(store: CheckpointStore, epoch: int | str) -> str:
    names = store.manifests()
    if epoch == LATEST:
        found = store.newest_name()
    elif str(epoch).isdecimal():
        numbers = {ManifestName.of(name): name for name in names}
        found = next((n for p, n in reversed(numbers.items()) if p and p.epoch == int(epoch)), None)
    else:
        wanted = str(epoch).removeprefix(f"{MANIFESTS}/")
        found = next((name for name in names if name == f"{MANIFESTS}/{wanted}"), None)
    if found is None:
        has = [str(one.epoch) for one in map(ManifestName.of, names) if one is not None]
        if not has:
            msg = (
                f"there are no checkpoints in {store.url!r}, if that is a folder at all: name the"
                " one that a job was given as checkpoints="
            )
            raise InputError(msg)
        msg = (
            f"the checkpoint folder {store.url!r} has no checkpoint {epoch!r}; there are epochs"
            f" {', '.join(has)}"
        )
        raise InputError(msg)
    return found


def read_epoch(store: CheckpointStore, epoch: int | str, read: Callable[[str, Manifest], T]) -> T:
    """Return what `read` makes of a checkpoint's name and manifest; raises what both do.

    A job that runs removes old checkpoints, with their files. If it does while one is read, the one
    that `epoch` names then is read instead: that it lacks a file is no damage.

    Args:
        store: where it is.
        epoch: see `find_epoch`, which raises if it is gone.
        read: reads what the manifest lists.
    """
    for _ in range(_TRIES_MAX):
        name = _name_of(store, epoch)
        try:
            return read(name, store.read_manifest(name))
        except DamagedCheckpointError:
            if name in store.manifests():
                raise
    return read(*find_epoch(store, epoch))


def state_of_operator(store: CheckpointStore, manifest: Manifest, operator: str) -> pa.Table:
    """Return what an operator keeps, see `read_state`."""
    import pyarrow as pa

    from ..operators.keyed.dumped_state import declared_table, declared_values

    if manifest.operators.get(operator, {}).get("kind") in ("source", "sink"):
        return _progress_of(manifest, operator)
    tables = [
        pa.Table.from_batches([rows.to_arrow()])
        for rows in operator_rows(store, manifest, operator)
        if rows.columns
    ]
    values = declared_values(manifest.operators[operator].get("state", ()))
    if values is not None:
        return declared_table(tables, values, _key_of(manifest, operator))
    kept = [table for table in tables if table.num_rows] or tables[:1]
    shown = [table.rename_columns(_without_signs(table.column_names)) for table in kept]
    return pa.concat_tables(shown, promote_options="default") if shown else pa.table({})


def _progress_of(manifest: Manifest, operator: str) -> pa.Table:
    """Return the positions of a source, and what a sink has staged: neither keeps other state."""
    import pyarrow as pa

    parts = [part for part in manifest.parts if part.operator_id == operator]
    if manifest.operators[operator]["kind"] == "source":
        known = [part for part in parts if part.position is not None]
        columns: dict[str, Any] = {
            "instances": pa.array([part.instances for part in known], pa.list_(pa.int64())),
            "position": pa.array([json.dumps(part.position) for part in known], pa.string()),
        }
    else:
        staged = [one for part in parts for one in part.staged]
        columns = {
            "instance": pa.array([one["instance"] for one in staged], pa.int64()),
            "rows": pa.array([one["rows"] for one in staged], pa.int64()),
            "path": pa.array([one.get("path") for one in staged], pa.string()),
        }
    return pa.table(columns)


def operator_rows(store: CheckpointStore, manifest: Manifest, operator: str) -> Iterable[Batch]:
    """Yield the rows of an operator's state, chunk by chunk, without those that wait for it.

    Raises:
        InputError: there is no such operator, or its state is opaque.
        DamagedCheckpointError: a chunk is missing or damaged.
    """
    parts = [part for part in manifest.parts if part.operator_id == operator]
    record: dict[str, Any] = dict(manifest.operators.get(operator, {}))
    if not parts and not record:
        near = difflib.get_close_matches(operator, list(manifest.operators), n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        has = _listed(sorted(manifest.operators))
        msg = f"checkpoint {manifest.epoch} has no operator {operator!r}{hint}; it has {has}"
        raise InputError(msg)
    if record.get("level") == "opaque":
        msg = (
            f"operator {operator!r} keeps its object whole, which only the operator can read;"
            " declare its state, or define dump and load"
        )
        raise InputError(msg)
    from ..operators.keyed.changed_keys import latest_rows
    from ..operators.windows.slice_versions import latest_groups, open_slices

    keys = _key_of(manifest, operator)
    for part in parts:
        chunks = [chunk_from_bytes(store.read_chunk(file)) for file in part.chunks]
        state = [chunk for chunk in chunks if chunk.waits is None]
        is_of_slices = any(open_slices(chunk.rows) is not None for chunk in state)
        latest = latest_groups if is_of_slices else latest_rows
        yield from latest(state, keys, StateBudget(_KEYS_BYTES_MAX))


def _key_of(manifest: Manifest, operator: str) -> Sequence[str]:
    """Return the key of an operator's first input, () if it has none."""
    record: Mapping[str, Any] = manifest.operators.get(operator, {})
    return next(iter(record.get("key", ())), ())


def _keys_of(manifest: Manifest, operator: str) -> set[str]:
    return {name for names in manifest.operators[operator].get("key", ()) for name in names}


def _without_signs(names: list[str]) -> list[str]:
    """Return the names of columns without the sign of those that an operator adds to its keys."""
    taken = {name for name in names if not name.startswith("#")}
    return [name if name.lstrip("#") in taken else name.lstrip("#") for name in names]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"
