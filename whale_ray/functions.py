"""Functions in column expressions, by PySpark's names: `import whale_ray.functions as F`.

All of them are listed and explained in `whale_ray.operators.functions`.
"""

from .operators import functions as _home
from .operators.functions import *  # noqa: F403 - the very same names, listed once, over there

__all__: list[str] = []
__all__ += _home.__all__
