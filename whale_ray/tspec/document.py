"""YAML with line numbers: every mistake is reported with the line on which it stands."""

from __future__ import annotations

import contextlib
import difflib
import functools
import reprlib
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..configs.errors import InputError

if TYPE_CHECKING:
    import yaml

__all__ = ["YamlEntry", "mistake_at", "read_document"]

Value = TypeVar("Value")

TEXT_CHARACTERS_MAX: Final = 4 << 20
"""Of a file: far more than 10,000 operators take."""

_MERGED_MAX: Final = 1_000


class YamlEntry:
    """A value in a YAML file: a mapping, a sequence or a scalar, and where it stands."""

    def __init__(self, where: str, node: yaml.Node) -> None:
        self._where, self._node = where, node

    @property
    def line(self) -> int:
        """The line on which it begins, from 1."""
        return int(self._node.start_mark.line) + 1

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        return f"{self._where}, line {self.line}"

    def items(self) -> dict[str, YamlEntry]:
        """Return the entries of a mapping; InputError if it is none, or a key comes twice."""
        import yaml

        if not isinstance(self._node, yaml.MappingNode):
            raise mistake_at(self, "expected a mapping (key: value)")
        found: dict[str, YamlEntry] = {}
        for key, value in self._node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise mistake_at(YamlEntry(self._where, key), "a key must be a word")
            if key.value in found:
                raise mistake_at(
                    YamlEntry(self._where, key), f"{key.value!r} is given twice; remove one"
                )
            found[str(key.value)] = YamlEntry(self._where, value)
        return found

    def each(self) -> Iterator[YamlEntry]:
        """Yield the entries of a sequence; InputError if it is none."""
        import yaml

        if not isinstance(self._node, yaml.SequenceNode):
            raise mistake_at(self, "expected a sequence (- value)")
        for value in self._node.value:
            yield YamlEntry(self._where, value)

    @property
    def is_sequence(self) -> bool:
        """Whether it is a sequence."""
        import yaml

        return isinstance(self._node, yaml.SequenceNode)

    def value(self) -> Any:
        """Return it as plain values."""
        import yaml

        loader = _loader_class()("")
        try:
            return loader.construct_object(self._node, deep=True)
        except yaml.YAMLError as error:
            raise mistake_at(self, str(getattr(error, "problem", None) or error)) from error
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # PyYAML's for a scalar that its tag does not fit: 2026-13-45, !!int abc, !!bool abc.
            raise mistake_at(self, f"a value makes no sense in YAML: {error}") from error

    def text(self) -> str:
        """Return a text; InputError if it is none."""
        value = self.value()
        if not isinstance(value, str):
            raise mistake_at(self, f"expected a text, found {_shown(value)}")
        return value

    def integer(self, *, at_least: int = 0, at_most: int) -> int:
        """Return a whole number; InputError if it is none, or not between the bounds."""
        value = self.value()
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if not is_number or not at_least <= value <= at_most:
            bounds = f"at least {at_least} and at most {at_most:,}"
            raise mistake_at(self, f"expected a whole number of {bounds}, found {_shown(value)}")
        return int(value)

    def number(self, *, at_most: float) -> float:
        """Return a number of at least 0; InputError if it is none, or greater than the bound."""
        value = _without_dot(self.value())
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= at_most:
            bounds = f"at least 0 and at most {at_most:,.13g}"
            raise mistake_at(self, f"expected a number of {bounds}, found {_shown(value)}")
        return float(value)

    def choice(self, kind: Callable[[str], Value], known: Collection[str]) -> Value:
        """Return one of the known words as `kind`; InputError if it is another one."""
        word = self.text()
        if word not in known:
            raise mistake_at(self, f"unknown {word!r}{_similar(word, known)}")
        return kind(word)

    def check_keys(self, known: Collection[str]) -> dict[str, YamlEntry]:
        """Return the entries of a mapping; InputError if it has a key that is not known."""
        found = self.items()
        for key, entry in found.items():
            if key not in known:
                raise mistake_at(entry, f"unknown field {key!r}{_similar(key, known)}")
        return found


@functools.cache
def _loader_class() -> type[yaml.SafeLoader]:
    """Return a loader that refuses mappings that grow without bounds, by merges of merges (<<)."""
    import yaml

    class BoundedLoader(yaml.SafeLoader):
        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            merged = [len(value.value) for key, value in node.value if key.value == "<<"]
            if sum(merged) <= _MERGED_MAX:
                super().flatten_mapping(node)
                if not merged or len(node.value) <= _MERGED_MAX:
                    return
            problem = f"more than {_MERGED_MAX:,} entries are merged into a mapping"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)

    return BoundedLoader


def _without_dot(value: Any) -> Any:
    """Return 1e6 as a number, which YAML 1.1 takes for a text, as it has no dot."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value)
    return value


def _shown(value: Any) -> str:
    """Return a value for a message; in a bounded time, also of aliases of aliases of aliases."""
    return f"{reprlib.repr(value):.60}"


def mistake_at(entry: YamlEntry, message: str) -> InputError:
    """Return an error that names the file and the line."""
    return InputError(f"{entry.place}: {message}")


def _similar(word: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else f"; there are {', '.join(known)}"


def read_document(text: str, where: str) -> YamlEntry:
    """Return the content of a YAML file; `where` names it in messages.

    Raises:
        InputError: it is not YAML, or empty.
    """
    import yaml

    if len(text) > TEXT_CHARACTERS_MAX:
        msg = f"{where}: it has {len(text):,} characters; at most {TEXT_CHARACTERS_MAX:,} are read"
        raise InputError(msg)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.reader.ReaderError as error:  # which counts characters, and no lines
        line = text.count("\n", 0, error.position) + 1
        msg = f"{where}, line {line}: the character {chr(error.character)!r} is not allowed"
        raise InputError(msg) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line_text = f", line {mark.line + 1}" if mark else ""
        msg = f"{where}{line_text}: {getattr(error, 'problem', None) or 'not YAML'}"
        raise InputError(msg) from error
    except RecursionError as error:
        msg = f"{where}: its values are nested too deeply"
        raise InputError(msg) from error
    if node is None:
        msg = f"{where}: the file is empty"
        raise InputError(msg)
    return YamlEntry(where, node)
