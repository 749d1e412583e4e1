"""`check_source` on sources with positions: each broken promise is found and named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

import whale_ray as whale
from tests.whale_ray.test_contract_checks import Numbers, Reader
from whale_ray.testing import ContractError, check_source


class Remembering(Reader):
    """A reader with a position, kept as promised; each test breaks one promise of it."""

    def __init__(self, numbers: list[int], parallelism: int = 1) -> None:
        super().__init__(numbers)
        self.parallelism = parallelism

    def position(self) -> Any:
        return {"left": list(self.numbers)}


class Positioned(Numbers):
    def __init__(self, reader: type[Remembering] = Remembering) -> None:
        super().__init__(reader)

    def open_at(self, context: Any, positions: Any) -> whale.sources.SourceReader:
        left = sorted(number for one in positions for number in one["left"])
        if len(positions) == context.parallelism:
            left = positions[context.instance]["left"]
            return self.reader(left)
        return self.reader(left[context.instance :: context.parallelism])


class Behind(Remembering):
    def read(self, max_rows: int) -> whale.Batch | None:
        self.before = list(self.numbers)
        return super().read(max_rows)

    def position(self) -> Any:
        return {"left": getattr(self, "before", list(self.numbers))}


class Ahead(Remembering):
    def position(self) -> Any:
        return {"left": self.numbers[1:]}


class Changing(Remembering):
    told: ClassVar[dict[str, Any]] = {}

    def read(self, max_rows: int) -> whale.Batch | None:
        batch = super().read(max_rows)
        self.told["left"] = list(self.numbers)
        return batch

    def position(self) -> Any:
        self.told["left"] = list(self.numbers)
        return self.told


class NoJson(Remembering):
    def position(self) -> Any:
        return {"left": set(self.numbers)}


class Moving(Remembering):
    calls = 0

    def position(self) -> Any:
        self.calls += 1
        return {"left": list(self.numbers), "calls": self.calls}


class CountsAgain(Remembering):
    @property
    def rejected(self) -> Mapping[str, int]:
        return {"bad": 1}


class Tells(Numbers):
    def __init__(self) -> None:
        super().__init__(Remembering)


class TellsNothing(Positioned):
    def __init__(self) -> None:
        super().__init__(Reader)  # type: ignore[arg-type]  # that is the mistake


class ReadsOwnOnly(Positioned):
    def open_at(self, context: Any, positions: Any) -> whale.sources.SourceReader:
        return self.reader(positions[context.instance % len(positions)]["left"])


class Reverses(Positioned):
    def open_at(self, context: Any, positions: Any) -> whale.sources.SourceReader:
        reader = super().open_at(context, positions)
        if len(positions) == context.parallelism == 1:
            reader.numbers.reverse()  # type: ignore[attr-defined]  # it is a Remembering
        return reader


class OneToOne(Positioned):
    def open_at(self, context: Any, positions: Any) -> whale.sources.SourceReader:
        if len(positions) != context.parallelism:
            raise whale.errors.InputError("as many instances as before are needed")
        return super().open_at(context, positions)


BROKEN_POSITIONS: dict[Any, str] = {
    Behind: "did not read the input once together",
    Ahead: "did not read the input once together",
    Changing: "a position changed as its reader read on",
    NoJson: "whose values are not JSON's",
    Moving: "without a read between",
    CountsAgain: "rejected counts what was left out since it was opened",
    Tells: "belong together, but open_at() is missing",
    TellsNothing: "belong together, but position() returned None",
    ReadsOwnOnly: "did not read the input once together",
    Reverses: "did not keep the order",
}


@pytest.mark.parametrize("broken", list(BROKEN_POSITIONS), ids=lambda one: one.__name__)
def test_a_broken_promise_of_positions_is_named(broken: Any) -> None:
    make = (lambda: Positioned(broken)) if issubclass(broken, Remembering) else broken
    with pytest.raises(ContractError) as error:
        check_source(make)
    assert BROKEN_POSITIONS[broken] in str(error.value)


def test_positions_that_keep_their_promises_pass() -> None:
    check_source(Positioned)
    check_source(OneToOne, rescales=False)
    with pytest.raises(whale.errors.InputError, match="as many instances as before"):
        check_source(OneToOne)
    with pytest.raises(ContractError, match="took the position of 1 instance for 2"):
        check_source(Positioned, rescales=False)
