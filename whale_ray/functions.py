"""Functions in column expressions, by PySpark's names: `import whale_ray.functions as F`.

As in `pyspark.sql.functions`, a text argument in the place of a column is the name of a column; a
constant text is `lit("text")`. Arguments such as positions, patterns and formats are plain Python
values.
"""

from .operators.expressions import functions as _home
from .operators.expressions.functions import *  # noqa: F403 - listed once, over there

__all__: list[str] = []
__all__ += _home.__all__
