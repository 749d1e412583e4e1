"""What the user's topology in `user_code/mileage.py` computes, without whale-ray."""

from __future__ import annotations


def expected_fares() -> dict[str, int]:
    cents: dict[str, int] = {}
    for i in range(1, 500, 2):
        cents[f"cab{i % 7}"] = cents.get(f"cab{i % 7}", 0) + 300 + 2 * i
    return cents
