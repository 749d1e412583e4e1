"""Whether a Parquet file's footer describes its columns soundly, found out without reading rows.

A footer has no checksum. pyarrow ends the whole process if it is asked for a column
(`RowGroupMetaData.column`) whose size statistics contradict its type, since it does not catch the
error there. It does where it reads: before the first row group it looks at the columns of all. So
it is told to read from a file that is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow.parquet as pq

__all__ = ["check_footer"]


def check_footer(path: str, metadata: pq.FileMetaData) -> None:
    """Check that pyarrow can describe each column of each row group of a file.

    Raises:
        OSError: it cannot, for the reason that it tells.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    closed = pa.OSFile(path)
    with pq.ParquetFile(closed, metadata=metadata, pre_buffer=True) as file:
        closed.close()
        try:
            file.read_row_groups(range(metadata.num_row_groups), use_threads=False)
        except pa.ArrowInvalid:
            pass  # the file is closed: the columns have been looked at
