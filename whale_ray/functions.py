"""Functions in column expressions, and aggregates, by PySpark's names.

`from whale_ray import functions as F`, as in PySpark.

As in `pyspark.sql.functions`, a text argument in the place of a column is the name of a column; a
constant text is `lit("text")`. Arguments such as positions, patterns and formats are plain Python
values.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .operators.aggregates import functions as _aggregates
from .operators.aggregates.functions import *  # noqa: F403 - listed once, over there
from .operators.expressions import functions as _home
from .operators.expressions.functions import *  # noqa: F403 - listed once, over there
from .operators.expressions.spark_names import no_function as _no_function

__all__: list[str] = []
__all__ += _home.__all__
__all__ += _aggregates.__all__

if not _TYPE_CHECKING:  # hidden from type checkers, which then report a missing function

    def __getattr__(name: str) -> None:
        raise AttributeError(_no_function(name, __all__), name=name)
