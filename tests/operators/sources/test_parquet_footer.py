"""Damaged footers of Parquet files are refused; some ended the process that asked for a column.

They are opened in a process of their own, which would end.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from whale_ray.operators.sources.parquet_footer import check_footer

ROWS = pa.table(
    {"n": range(200), "s": [f"s{n % 7}" for n in range(200)], "l": [[n] for n in range(200)]}
)

OPENING = """
import random, sys
from whale_ray.configs.errors import InputError
from whale_ray.operators.sources.parquet_files import _open, _rows_at_once

content = open(sys.argv[1], "rb").read()
length = int.from_bytes(content[-8:-4], "little")
begin = len(content) - 8 - length
chosen = random.Random(7)
# Of the schema each bit: whether a column is optional, and its type, decide on its statistics.
damages = [(at, 1 << bit) for at in range(60) for bit in range(8)]
damages += [(chosen.randrange(length), chosen.randrange(1, 256)) for _ in range(1000)]
refused = 0
for at, flipped in damages:
    damaged = bytearray(content)
    damaged[begin + at] ^= flipped
    with open(sys.argv[2], "wb") as file:
        file.write(damaged)
    try:
        with _open(sys.argv[2]) as file:
            _rows_at_once(file, list(range(file.metadata.num_row_groups)), file.schema_arrow.names)
    except InputError as error:
        refused += 1
        if "histogram size mismatch" in str(error):
            print(at, flipped)
print("refused", refused > 100)
"""


def test_no_damage_of_a_footer_ends_the_process(tmp_path: Path) -> None:
    sound = tmp_path / "sound.parquet"
    pq.write_table(ROWS, sound, row_group_size=100)
    command = [sys.executable, "-c", OPENING, str(sound), str(tmp_path / "damaged.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    *contradicting, last = done.stdout.splitlines()
    assert last == "refused True"
    assert contradicting, "none of them was of the kind that ended the process"


@pytest.mark.parametrize("rows", [ROWS, ROWS.slice(0, 0), pa.table({}), ROWS.select(["l"])])
def test_a_sound_footer_is_none_to_complain_of(rows: pa.Table, tmp_path: Path) -> None:
    path = str(tmp_path / "sound.parquet")
    for options in {}, {"row_group_size": 7}, {"write_statistics": False}:
        pq.write_table(rows, path, **options)
        check_footer(path, pq.read_metadata(path))
