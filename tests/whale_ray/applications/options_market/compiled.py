"""Compiles, when imported, what a run of the market takes: for a machine that is slow to compile.

`.ci/rdma-guest --modules tests.whale_ray.applications.options_market.compiled …` carries it along.
"""

from __future__ import annotations

import whale_ray as whale
from tests.whale_ray.applications.options_market.markets import small_book
from whale_ray.applications.options_market.settings import OptionsMarketSettings
from whale_ray.applications.options_market.topology import build

_MARKET = OptionsMarketSettings(rate=20_000, seconds=0.05, threshold_bp=100)

whale.run(build(small_book(), whale.sinks.collect(), whale.sinks.collect(), _MARKET))
