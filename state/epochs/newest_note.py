"""Each claim's note of the newest manifest that is durable.

The note is written after the manifest. So a manifest that a note names was whole once; and since
a note is read by its name, a listing that is out of date hides nothing that is durable. A job that
takes a folder over begins with a note of what is the newest then, and so does each further attempt
of a job at a URL: what an earlier one has written and comes late does not count, since the two know
nothing of each other any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...configs.errors import DamagedCheckpointError
from .claim import claim_numbers
from .sealed_json import seal, unseal
from .store_files import StoreFiles
from .store_names import ManifestName, newest_name

__all__ = ["NewestNote", "read_note", "write_note"]

_KIND = "note of the newest manifest"
_VERSION = 1


@dataclass(frozen=True)
class NewestNote:
    """What a claim's note says.

    Attributes:
        claim: the number of the claim.
        name: of the manifest; None: there was none when the claim was taken.
    """

    claim: int
    name: ManifestName | None

    def lets_count(self, name: ManifestName) -> bool:
        """Return whether a manifest counts: it is of this claim or a later one, or was there."""
        return name.claim >= self.claim or self.is_behind(name)

    def is_behind(self, name: ManifestName) -> bool:
        """Return whether a manifest is the one of the note, or an earlier one."""
        return self.name is not None and name <= self.name


def read_note(files: StoreFiles) -> NewestNote | None:
    """Return the note of the last claim that has written one; None if none has.

    One that was cut short counts as none: its writer died, and the manifest before it is whole.

    Raises:
        InputError: it is of a newer version, or the folder cannot be read.
    """
    for number in reversed(claim_numbers(files)):
        where = newest_name(number)
        data = files.get(where)
        if data is not None:
            try:
                name = unseal(_KIND, _VERSION, data, f"{where} in the folder {files.url!r}")
            except DamagedCheckpointError:
                return None
            return NewestNote(number, ManifestName.of(name))
    return None


def write_note(files: StoreFiles, note: NewestNote) -> None:
    """Write a claim's note, durably.

    Raises:
        OutputError: it cannot be written.
    """
    name = "" if note.name is None else str(note.name)
    files.put(newest_name(note.claim), seal(_KIND, _VERSION, name))
