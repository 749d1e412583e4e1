"""Functions in column expressions, by PySpark's names: `import whale_ray.functions as F`.

All of them are listed and explained in `whale_ray.operators.expressions.functions`.
"""

from .operators.expressions import functions as _home
from .operators.expressions.functions import *  # noqa: F403 - listed once, over there

__all__: list[str] = []
__all__ += _home.__all__
