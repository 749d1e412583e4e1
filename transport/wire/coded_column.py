"""`CodedColumn`: a column of text whose rows are codes of a dictionary's texts.

Sources give such columns where their input is encoded so. Compiled loops read the codes; everything
else sees plain text, which is decoded when it is first asked for: a coded column never reaches an
edge, which sends plain text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import kernels
from .block import column_sources, gather_block
from .column import Column, is_owned

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Array = npt.NDArray[Any]

__all__ = ["CodedColumn", "Dictionary", "coded_columns"]


class Dictionary:
    """Texts by their codes. The last is empty and stands for null.

    Columns whose texts are the same share one object, so what is computed for each of its texts is
    kept for it.

    Args:
        values: the texts, none null: those of the codes 0, 1, …

    Attributes:
        values: the same with the text for null behind them.
        null: the code of null.
        longest: bytes of the longest text.
    """

    __slots__ = ("longest", "null", "values")

    def __init__(self, values: Column) -> None:
        assert values.offsets is not None
        self.null = len(values)
        offsets = np.append(values.offsets, values.offsets[-1])
        self.values = Column(values.type, values.data, offsets)
        self.longest = int(np.diff(offsets).max())

    def __len__(self) -> int:
        """Return the number of codes, that of null among them."""
        return self.null + 1

    @property
    def rows(self) -> Column:
        """The value of each code as a row, the last one null."""
        valid = np.ones(len(self), np.bool_)
        valid[self.null] = False
        return Column(self.values.type, self.values.data, self.values.offsets, valid)


class CodedColumn(Column):
    """Texts of a dictionary, by row; immutable.

    Args:
        dictionary: the texts.
        codes: int32 (n,), each one of the dictionary's: that of null where there is no value.
        validity: as for `Column`.

    Attributes:
        dictionary, codes: the same.
    """

    __slots__ = ("_plain", "_text_bytes", "codes", "dictionary")

    dictionary: Dictionary
    codes: npt.NDArray[np.int32]

    def __init__(
        self,
        dictionary: Dictionary,
        codes: npt.NDArray[np.int32],
        validity: npt.NDArray[np.bool_] | None,
    ) -> None:
        self.type = dictionary.values.type
        self.dictionary, self.codes, self.validity = dictionary, codes, validity
        self._plain: Column | None = None
        self._text_bytes: int | None = None
        codes.flags.writeable = False

    @property
    def data(self) -> Array:  # type: ignore[override]  # read-only as the arrays are
        """See `Column`; all rows are decoded when it is first asked for."""
        return self._decoded().data

    @property
    def offsets(self) -> npt.NDArray[np.int32]:  # type: ignore[override]  # likewise
        """See `Column`; all rows are decoded when it is first asked for."""
        found = self._decoded().offsets
        assert found is not None
        return found

    def __len__(self) -> int:
        return self.codes.size

    def __reduce__(self) -> tuple[Any, ...]:
        return Column, (self.type, self.data, self.offsets, self.validity)

    @property
    def text_bytes(self) -> int:
        """Bytes of all texts, without decoding them."""
        if self._text_bytes is None:  # asked for by each batch that has the column
            offsets = self.dictionary.values.offsets
            self._text_bytes = int(kernels.coded_bytes(self.codes, offsets))
        return self._text_bytes

    @property
    def nbytes(self) -> int:
        """See `Column`: as if it were decoded."""
        size = 0 if self.validity is None else self.validity.size
        return size + 4 * (len(self) + 1) + self.text_bytes

    @property
    def owned(self) -> bool:
        """See `Column`."""
        validity = self.validity
        return (
            is_owned(self.codes)
            and self.dictionary.values.owned
            and (validity is None or is_owned(validity))
        )

    def slice(self, start: int, stop: int) -> CodedColumn:
        """See `Column`."""
        validity = None if self.validity is None else self.validity[start:stop]
        return CodedColumn(self.dictionary, self.codes[start:stop], validity)

    def take(self, rows: npt.NDArray[np.int64]) -> CodedColumn:
        """Return the rows at some places, which are in range; owned."""
        validity = None if self.validity is None else self.validity[rows]
        return CodedColumn(self.dictionary, self.codes[rows], validity)

    def padded_bytes(self) -> int:
        """Return what it takes in a message; see `kernels.concat_bytes`."""
        count = len(self)
        parts = (4 * (count + 1), 0 if self.validity is None else count, self.text_bytes)
        return sum(int(kernels.padded(size)) for size in parts)

    def _decoded(self) -> Column:
        if self._plain is None:
            sources = column_sources([self.dictionary.values], None)
            block = gather_block(sources, self.codes.astype(np.int64), (str(self.type),))
            texts = block.column(0, self.type, 0, len(self))
            self._plain = Column(self.type, texts.data, texts.offsets, self.validity)
        return self._plain


def coded_columns(columns: Sequence[Column | None]) -> dict[int, CodedColumn]:
    """Return those of some columns that are coded, by their places."""
    return {at: one for at, one in enumerate(columns) if isinstance(one, CodedColumn)}
