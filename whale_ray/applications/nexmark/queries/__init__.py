"""NEXMark's queries, one module each; `build` in it adds the query to a topology.

The queries and their numbers are those of github.com/nexmark/nexmark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from . import (
    q00,
    q01,
    q02,
    q03,
    q04,
    q05,
    q07,
    q07_one_to_many,
    q08,
    q09,
    q11,
    q12,
    q13,
    q14,
    q15,
    q16,
    q17,
    q18,
    q19,
    q20,
)

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs

__all__ = ["NOT_OFFERED", "QUERIES"]

QUERIES: Mapping[str, Callable[[Inputs], Stream]] = MappingProxyType(
    {
        "0": q00.build,
        "1": q01.build,
        "2": q02.build,
        "3": q03.build,
        "4": q04.build,
        "5": q05.build,
        "7": q07.build,
        "7-one-to-many": q07_one_to_many.build,
        "8": q08.build,
        "9": q09.build,
        "11": q11.build,
        "12": q12.build,
        "13": q13.build,
        "14": q14.build,
        "15": q15.build,
        "16": q16.build,
        "17": q17.build,
        "18": q18.build,
        "19": q19.build,
        "20": q20.build,
    }
)
"""The name of a query → the function that adds it, and returns its result."""

NOT_OFFERED: Mapping[str, str] = MappingProxyType(
    {
        "6": "the average of a seller's last ten auctions is a window of rows over results that"
        " change, which windows here do not take",
        "10": "it logs the bids into files by the minute, which sinks here do not do",
    }
)
"""The name of a query of the original that is missing → why."""
