"""The types that `cast` accepts, by whale-ray's or Spark's names."""

from __future__ import annotations

from ...configs.errors import ExpressionError, InputError
from ...transport.wire.types import DataType, as_type

__all__ = ["parse_type"]


def parse_type(name: str | DataType) -> DataType:
    """Return a type by whale-ray's or Spark's name; raise ExpressionError if there is none."""
    if isinstance(name, DataType):
        return name
    try:
        return as_type(str(name))
    except InputError as error:
        msg = f"cannot cast to {name!r}: {error}"
        raise ExpressionError(msg) from None
