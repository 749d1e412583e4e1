"""What sinks have staged survives as JSON, whatever bytes it has."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from whale_ray.operators.sinks.base import Staged
from whale_ray.operators.sinks.staged_json import staged_from_json, staged_to_json

_PARTS = st.builds(
    Staged,
    instance=st.integers(0, 2**40),
    rows=st.integers(0, 2**62),
    nbytes=st.integers(0, 2**62),
    schema=st.none() | st.binary(max_size=40),
    path=st.none() | st.text(max_size=20),
    payload=st.none() | st.binary(max_size=40),
    inode=st.none() | st.integers(0, 2**62),
)


@given(_PARTS)
def test_a_part_comes_back_from_json_as_it_was(part: Staged) -> None:
    text = json.dumps(staged_to_json(part))
    assert staged_from_json(json.loads(text)) == part


def test_what_has_its_default_is_left_out() -> None:
    assert staged_to_json(Staged(2, 5)) == {"instance": 2, "rows": 5}
