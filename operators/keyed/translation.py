"""Translates a compiled `on_row` into a loop over the rows of a batch, as source for numba.

What a row function may say of its arguments is little, and replaced::

    row.price, row["price"]      the column's raw value in this row
    self.bids.get(), .exists     the field of the key's record, its bit
    self.bids.add(x), .set(x), .clear()     statements
    self.clear()                 every field back to its initial value
    out.emit_row(name=…)         values into arrays; columns of the row itself are only noted
    out.time_ns                  the row's event time
    return                       the next row

Everything else is left to numba, which knows numbers, `math`, loops, local names and functions that
are compiled themselves.
"""

from __future__ import annotations

import ast
import copy
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ...configs.errors import TopologyError
from ...state.declarations import StateDeclaration
from .handles import FLOAT32_END
from .method_names import (
    bounds_of,
    forms_of,
    is_literal,
    is_of_the_loop,
    pythons_function,
    without_value,
)

__all__ = ["DONE", "FIRE", "LEFT", "Translation", "translate"]

DONE, FIRE, FULL, LEFT = -1, -2, -3, -4
"""Why the loop stopped: at the end; a timer comes before the row; no room for output; a whole
number left its type. From 0 on it is the number of a handle whose value left its type."""

_METHODS = ("add", "set", "clear")
_CHECKED: dict[type[ast.operator], str] = {
    ast.Add: "_added",
    ast.Sub: "_subtracted",
    ast.Mult: "_multiplied",
    ast.FloorDiv: "_divided",
    ast.LShift: "_shifted_left",
    ast.RShift: "_shifted_right",
    ast.Pow: "_powered",
}
_CHECKED_ARGUMENT: dict[Any, str] = {
    abs: "_negatable",
    **dict.fromkeys((int, round, math.floor, math.ceil, math.trunc), "_whole"),
}
"""See `checked_integers`."""


@dataclass
class Translation:
    """The loop of one class.

    Attributes:
        source: of a function `loop`.
        columns: the columns that it reads, in the order of its arguments.
        emitted: the columns of its output: None for a computed one, else the input's column.
        kept: handles, each with a column whose values it is given as they are.
        emits_per_row: the most rows that it emits for a row.
        reads_time: whether it needs event times.
        function: the method itself, for the values that it refers to.
    """

    source: str = ""
    columns: list[str] = field(default_factory=list)
    emitted: dict[str, str | None] = field(default_factory=dict)
    kept: list[tuple[str, str]] = field(default_factory=list)
    emits_per_row: int = 0
    reads_time: bool = False
    function: Callable[..., None] | None = None


def translate(
    owner: str, function: Callable[..., None], declared: Mapping[str, StateDeclaration]
) -> Translation:
    """Return the loop of a compiled `on_row`.

    Args:
        owner: the name of the class, for messages.
        function: the method.
        declared: the state that the class declares.

    Raises:
        TopologyError: the function does what a loop without Python cannot; the message says where.
    """
    return _Translator(owner, function, declared).run()


class _Translator(ast.NodeTransformer):
    """Replaces what a function says of `self`, `row` and `out`."""

    def __init__(
        self, owner: str, function: Callable[..., None], declared: Mapping[str, StateDeclaration]
    ) -> None:
        self._owner = owner
        self._function = function
        self._declared = declared
        self._found = Translation()
        self._loops = 0

    def run(self) -> Translation:
        definition = self._definition()
        arguments = [argument.arg for argument in definition.args.args]
        if len(arguments) != 3:
            self._refuse(definition, "on_row takes self, row and out")
        self._self, self._row, self._out = arguments
        for name, declared in self._declared.items():
            if declared.ttl is not None:
                self._refuse(definition, f"self.{name} has a ttl: remove it, or @whale.compiled")
        for site in ast.walk(definition):
            if isinstance(site, ast.Call) and self._is_emit(site):
                self._note_emit(site)
        if (unset := without_value(definition)) is not None:
            self._refuse(unset, f"{unset.id} may have no value: assign it before")
        body: list[ast.stmt] = []
        for statement in definition.body:
            visited = self.visit(statement)
            body += visited if isinstance(visited, list) else [visited]
        self._found.function = self._function
        self._found.source = self._loop(body)
        return self._found

    def _definition(self) -> ast.FunctionDef:
        try:
            lines, self._first_line = inspect.getsourcelines(self._function)
        except (OSError, TypeError) as error:
            msg = f"{self._owner}.on_row is compiled from its source, which cannot be read: {error}"
            raise TopologyError(msg) from None
        definition = ast.parse(textwrap.dedent("".join(lines))).body[0]
        assert isinstance(definition, ast.FunctionDef)
        return definition

    def _loop(self, body: list[ast.stmt]) -> str:
        """Return the source of the loop around the translated body."""
        found = self._found
        arguments = ["_start", "_slots", "_times", "_limits", "_emitted", "_bits", "_template"]
        arguments += [f"_c{number}" for number in range(len(found.columns))]
        arguments += [f"_f{number}" for number in range(len(self._declared))]
        arguments += [f"_o_{name}" for name in self._computed_names()]
        lines = [
            f"def loop({', '.join(arguments)}):",
            "    _count = 0",
            "    _left = np_zeros(1, np_uint8)",
            "    for _at in range(_start, len(_slots)):",
            "        if _left[0]:",
            f"            return _at - 1, _count, {LEFT}",
            f"        if _count + {found.emits_per_row} > len(_emitted):",
            f"            return _at, _count, {FULL}",
            "        _slot = _slots[_at]",
        ]
        for number, declared in enumerate(self._declared.values()):
            if declared.kind == "timer" and declared.clock == "event":
                lines.append(f"        if _limits[0] and _f{number}[_slot] < _times[_at]:")
                lines.append(f"            return _at, _count, {FIRE}")
        for statement in body:
            ast.fix_missing_locations(statement)
            lines.append(textwrap.indent(ast.unparse(statement), " " * 8))
        lines.append("    if _left[0]:")
        lines.append(f"        return len(_slots) - 1, _count, {LEFT}")
        lines.append(f"    return len(_slots), _count, {DONE}")
        return "\n".join(lines) + "\n"

    def _computed_names(self) -> list[str]:
        return [name for name, source in self._found.emitted.items() if source is None]

    # -- statements ---------------------------------------------------------------------------

    def visit_Expr(self, node: ast.Expr) -> Any:
        """Replace a call that is a statement."""
        call = node.value
        if isinstance(call, ast.Constant):  # a docstring
            return ast.Pass()
        if not isinstance(call, ast.Call):
            return self.generic_visit(node)
        if self._is_emit(call):
            return self._emit(call)
        target = call.func
        if not isinstance(target, ast.Attribute):
            return self.generic_visit(node)
        if self._is(target.value, self._self) and target.attr == "clear":
            return self._statements(
                [line for name in self._declared for line in self._clear(node, name)]
            )
        name = self._handle(target.value)
        if name is None:
            return self.generic_visit(node)
        if target.attr not in _METHODS:
            self._refuse(node, f"self.{name}.{target.attr} is not compiled")
        columns = [self._column(one) for one in call.args]
        self._found.kept += [(name, column) for column in columns if column is not None]
        given = self._argument(call, name, target.attr) or "1"
        if target.attr == "clear":
            return self._statements(self._clear(node, name))
        return self._statements(self._change(node, name, target.attr, given))

    def visit_Return(self, node: ast.Return) -> Any:
        """Continue with the next row."""
        if node.value is not None:
            self._refuse(node, "on_row returns nothing")
        if self._loops:
            self._refuse(node, "return inside a loop is not compiled")
        return ast.Continue()

    def visit_For(self, node: ast.For | ast.While) -> Any:
        """Note that what is inside may be repeated."""
        self._loops += 1
        visited = self.generic_visit(node)
        self._loops -= 1
        return visited

    visit_While = visit_For  # noqa: N815  # a name of `ast`

    # -- expressions --------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> Any:
        """Replace `self.handle.get()`; note what cannot become a whole number."""
        target = node.func
        name = self._handle(target.value) if isinstance(target, ast.Attribute) else None
        if isinstance(target, ast.Attribute) and name is not None:
            if target.attr not in ("get", "get_ns"):
                self._refuse(node, f"self.{name}.{target.attr} has no value in compiled code")
            value = f"_read(_f{self._number(name)}[_slot])"
            default = self._argument(node, name, target.attr)
            if default is not None:
                value = f"({value} if {self._exists(name)} else {default})"
            return self._expression(value)
        if self._is_emit(node):
            self._refuse(node, "out.emit_row is a statement of its own")
        check = _CHECKED_ARGUMENT.get(pythons_function(node.func, self._function))
        self.generic_visit(node)
        if check is not None and len(node.args) == 1 and not node.keywords:
            node.args = [self._call(check, node.args[0])]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        """Replace `row.column`, `self.key.column`, `self.handle.exists` and `out.time_ns`."""
        column = self._column(node)
        if column is not None:
            return self._expression(f"_read(_c{self._column_number(column)}[_at])")
        name = self._handle(node.value)
        if name is not None and node.attr == "exists":
            return self._expression(self._exists(name))
        if self._is(node.value, self._out) and node.attr == "time_ns":
            self._found.reads_time = True
            return self._expression("_times[_at]")
        if self._is(node.value, self._self):
            self._refuse(node, f"self.{node.attr} is no declared state with fixed width")
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        """Replace `row["column"]`."""
        column = self._column(node)
        if column is not None:
            return self._expression(f"_read(_c{self._column_number(column)}[_at])")
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        """Note when whole numbers leave 64 bits."""
        self.generic_visit(node)
        if isinstance(node.op, ast.Pow) and isinstance(node.right, ast.UnaryOp):
            if is_literal(node.right):  # a fraction, of whole numbers too
                node.left = ast.Call(ast.Name("np_float64", ast.Load()), [node.left], [])
        function = _CHECKED.get(type(node.op))
        return node if function is None else self._call(function, node.left, node.right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        """Note when whole numbers leave 64 bits."""
        self.generic_visit(node)
        if is_literal(node) or not isinstance(node.op, ast.USub):
            return node
        return self._call("_negated", node.operand)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        """Write `name += value` as `name = name + value`, and so of `values[at]`."""
        if not isinstance(node.target, ast.Name | ast.Subscript):
            return self.generic_visit(node)
        before = copy.deepcopy(node.target)
        before.ctx = ast.Load()
        value = self.visit(ast.BinOp(before, node.op, node.value))
        return ast.Assign([self.visit(node.target)], value)

    def visit_Constant(self, node: ast.Constant) -> Any:
        """Refuse None, which numba compares to a number without complaint."""
        if node.value is None:
            self._refuse(
                node,
                "None is no value in compiled code: ask .exists of a handle, or fill columns"
                " before",
            )
        return node

    def visit_Name(self, node: ast.Name) -> Any:
        """Refuse the arguments themselves."""
        if node.id in (self._self, self._row, self._out):
            self._refuse(node, f"{node.id} itself is no value in compiled code")
        if is_of_the_loop(node.id):
            self._refuse(node, f"the name {node.id} is one of the loop's own: choose another")
        return node

    def visit_Global(self, node: ast.Global) -> Any:
        """Refuse to write what other rows and objects see."""
        self._refuse(node, "global is not compiled: keep values in declared state")

    # -- pieces of source ---------------------------------------------------------------------

    def _argument(self, call: ast.Call, name: str, method: str) -> str | None:
        """Return the source of the argument of a handle's method, None if it is given none."""
        forms = forms_of(self._declared[name].kind, method)
        starred = any(isinstance(one, ast.Starred) for one in call.args)
        if starred or call.keywords or len(call.args) not in forms:
            only = " or ".join(forms.values())
            self._refuse(call, f"self.{name}.{method} is compiled only as {only}")
        return ast.unparse(self.visit(call.args[0])) if call.args else None

    def _change(self, node: ast.AST, name: str, method: str, given: str) -> list[str]:
        """Return the source of `add` or `set`."""
        number, declared = self._number(name), self._declared[name]
        place = f"_f{number}[_slot]"
        whole = declared.type.storage.kind in "iu"
        if method == "add" and declared.kind in ("value", "timer"):
            self._refuse(node, f"self.{name} is a {declared.kind}, which has no add")
        match (declared.kind, method):
            case ("count" | "sum", "add") if whole:
                low, high = bounds_of(declared.type)
                wraps = "((_before ^ _total) & (_amount ^ _total)) < 0"
                return [
                    f"_before, _amount = np_int64({place}), ({given})",
                    "_total = _added(_before, _amount, _left)",
                    f"if {wraps} or _total < {low} or _total > {high}:",
                    f"    return _at, _count, {number}",
                    f"{place} = _total",
                ]
            case ("count" | "sum", "add"):
                return [*self._new_value(name, f"_read({place}) + ({given})"), f"{place} = _new"]
            case ("min" | "max", "add"):
                sign = "<" if declared.kind == "min" else ">"
                greater, less = ("_old", "_new") if declared.kind == "min" else ("_new", "_old")
                is_nan = f"({greater} != {greater} and {less} == {less})"
                return [
                    *self._new_value(name, given),
                    f"_old = {place}",
                    f"if not {self._exists(name)} or _new {sign} _old or {is_nan}:",
                    f"    {place} = _new",
                    f"    {self._set_bit(name)}",
                ]
            case _:
                bits = [self._set_bit(name)] if declared.kind in ("min", "max", "value") else []
                return [*self._new_value(name, given), f"{place} = _new", *bits]

    def _new_value(self, name: str, given: str) -> list[str]:
        """Return the source that computes `_new`, a whole number where the handle keeps these."""
        kind, leaves = self._declared[name].type, f"    return _at, _count, {self._number(name)}"
        if kind.name == "float32":  # in which a finite number that does not fit would be infinite
            beyond = [f"{FLOAT32_END} <= {new} < np_inf" for new in ("_new", "-_new")]
            return [f"_new = np_float64({given})", f"if {beyond[0]} or {beyond[1]}:", leaves]
        if kind.storage.kind not in "iu":
            return [f"_new = ({given})"]
        low, high = bounds_of(kind)
        return [f"_new = ({given}) | 0", f"if _new < {low} or _new > {high}:", leaves]

    def _clear(self, node: ast.AST, name: str) -> list[str]:
        number, declared = self._number(name), self._declared[name]
        if _is_wide(declared):
            self._refuse(node, f"self.{declared.describe()} has no fixed width")
        lines = [f"_f{number}[_slot] = _template[0][{name!r}]"]
        if declared.kind in ("min", "max", "value"):
            lines.append(f"_bits[_slot] &= ~np_uint64({self._mask(name)})")
        return lines

    def _emit(self, call: ast.Call) -> Any:
        lines = []
        for keyword in call.keywords:
            assert keyword.arg is not None
            if self._found.emitted[keyword.arg] is None:
                value = ast.unparse(self.visit(keyword.value))
                place = f"_o_{keyword.arg}"
                lines.append(f"{place}[_count] = _fitted({place}, {value}, _left)")
        return self._statements([*lines, "_emitted[_count] = _at", "_count += 1"])

    def _note_emit(self, call: ast.Call) -> None:
        """Note the columns of one `out.emit_row(…)`."""
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            self._refuse(call, "emit_row takes columns by name")
        sources = {str(one.arg): self._column(one.value) for one in call.keywords}
        if self._found.emitted and list(self._found.emitted) != list(sources):
            self._refuse(call, "all emit_row must have the same columns, in the same order")
        known = self._found.emitted or sources
        self._found.emitted = {
            name: source if known[name] == source else None for name, source in sources.items()
        }
        self._found.emits_per_row += 1

    def _is_emit(self, call: ast.Call) -> bool:
        target = call.func
        if not isinstance(target, ast.Attribute) or not self._is(target.value, self._out):
            return False
        if target.attr != "emit_row":
            self._refuse(call, f"out.{target.attr} is not compiled; emit_row is")
        if self._loops:
            self._refuse(
                call,
                "emit_row inside a loop is not compiled: write one emit_row for each row, or"
                " remove @whale.compiled",
            )
        return True

    def _column(self, node: ast.AST) -> str | None:
        """Return the column that `row.name`, `row["name"]` or `self.key.name` means."""
        if isinstance(node, ast.Attribute):
            if self._is(node.value, self._row):
                return node.attr
            inner = node.value
            is_key = isinstance(inner, ast.Attribute) and inner.attr == "key"
            if is_key and self._is(inner.value, self._self):  # type: ignore[attr-defined] # is_key
                return node.attr
        if isinstance(node, ast.Subscript) and self._is(node.value, self._row):
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                return node.slice.value
            self._refuse(node, "a row's column is named by a text")
        return None

    def _column_number(self, column: str) -> int:
        if column not in self._found.columns:
            self._found.columns.append(column)
        return self._found.columns.index(column)

    def _handle(self, node: ast.AST) -> str | None:
        """Return the name of the declared state that `self.name` means."""
        if isinstance(node, ast.Attribute) and self._is(node.value, self._self):
            declared = self._declared.get(node.attr)
            if declared is not None and _is_wide(declared):
                self._refuse(node, f"self.{declared.describe()} has no fixed width")
            if declared is not None and declared.type.name == "uint64":
                self._refuse(
                    node, f"self.{node.attr} keeps uint64, which is not compiled: declare int64"
                )
            return None if declared is None else node.attr
        return None

    def _number(self, name: str) -> int:
        return list(self._declared).index(name)

    def _mask(self, name: str) -> int:
        nullable = [
            one.name for one in self._declared.values() if one.kind in ("min", "max", "value")
        ]
        return 1 << nullable.index(name)

    def _exists(self, name: str) -> str:
        if self._declared[name].kind == "timer":
            return f"(_f{self._number(name)}[_slot] != {(1 << 63) - 1})"
        if self._declared[name].kind not in ("min", "max", "value"):
            return "True"
        return f"(_bits[_slot] & np_uint64({self._mask(name)}) != 0)"

    def _set_bit(self, name: str) -> str:
        return f"_bits[_slot] |= np_uint64({self._mask(name)})"

    def _call(self, function: str, *operands: ast.expr) -> ast.expr:
        """Return a call of one of `checked_integers`."""
        arguments = [*operands, ast.Name("_left", ast.Load())]
        return ast.Call(ast.Name(function, ast.Load()), arguments, [])

    @staticmethod
    def _is(node: ast.AST, name: str) -> bool:
        return isinstance(node, ast.Name) and node.id == name

    @staticmethod
    def _statements(lines: list[str]) -> list[ast.stmt]:
        return ast.parse("\n".join(lines)).body or [ast.Pass()]

    @staticmethod
    def _expression(source: str) -> ast.expr:
        return ast.parse(source, mode="eval").body

    def _refuse(self, node: ast.AST, what: str) -> NoReturn:
        line = self._first_line + getattr(node, "lineno", 1) - 1
        msg = f"{self._owner}.on_row is compiled, and in line {line} {what}"
        raise TopologyError(msg)


def _is_wide(declared: StateDeclaration) -> bool:
    return declared.type.kind == "bytes" or declared.kind in ("list", "map")
