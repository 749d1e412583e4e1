"""Query 8, monitor new users: a join within windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....operators.windows.specifications import window

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs


def build(inputs: Inputs) -> Stream:
    """Return the people who register and put up an auction in the same 10 s, once each."""
    people = inputs.persons("id", "name").select("id", "name")
    sellers = inputs.auctions("seller").select("seller")
    return people.join(
        sellers,
        on={"id": "seller"},
        within=window("10 seconds"),
        how="semi",
        id="new-sellers",
        parallelism=inputs.parallelism,
    ).select("id", "name", "window_start")
