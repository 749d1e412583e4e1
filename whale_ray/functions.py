"""Functions in column expressions, by PySpark's names: `import whale_ray.functions as F`.

As in `pyspark.sql.functions`, text given where a column is expected is a column's name; a constant
text is `lit("text")`. Arguments that shape the function (positions, patterns, formats) are plain
Python values.
"""

from .operators.expressions import functions as _home
from .operators.expressions.functions import *  # noqa: F403 - listed once, over there

__all__: list[str] = []
__all__ += _home.__all__
