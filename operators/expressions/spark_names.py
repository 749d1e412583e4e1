"""The translation table for PySpark users: other names, and other meanings.

`functions` and `Expression` have PySpark's names and meaning except for what is listed here.
"""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

__all__ = [
    "CAMEL_CASE",
    "DIFFERENCES",
    "OTHER_FUNCTIONS",
    "RENAMED",
    "no_function",
    "spark_translation_table",
]

#: A column's method in PySpark → its name here.
CAMEL_CASE = {
    "isNull": "is_null",
    "isNotNull": "is_not_null",
    "eqNullSafe": "eq_null_safe",
    "bitwiseAND": "bitwise_and",
    "bitwiseOR": "bitwise_or",
    "bitwiseXOR": "bitwise_xor",
    "astype": "cast",
    "name": "alias",
}

#: Written in PySpark → written here.
RENAMED: tuple[tuple[str, str], ...] = (
    ("F.col, F.lit, F.when", "whale.col, whale.lit, whale.when"),
    ("F.upper(…), F.year(…), …", "whale.functions.upper(…), whale.functions.year(…), …"),
    ("df.select(…), df.filter(…)", "stream.select(…), stream.filter(…)"),
    ("df.select('*', …)", "stream.with_column('name', …): all columns, and one more"),
    ("df.where(…), df.groupBy(…)", "stream.filter(…), stream.group_by(…)"),
    ("df.withColumn(…)", "stream.with_column(…)"),
    *((f"column.{spark}(…)", f"column.{here}(…)") for spark, here in CAMEL_CASE.items()),
    ("F.window(…), F.session_window(…)", "whale.window(…), whale.session_window(…)"),
    ("F.expr('INTERVAL 5 MINUTES')", "datetime.timedelta(minutes=5)"),
    ("F.udf(function)", "stream.map(function): a plain Python function per row"),
    ("F.pandas_udf(function)", "stream.map(whale.columns(function)): a function on columns"),
)

#: A function that PySpark has under two names: that which is none here → that which is.
_SECOND_NAMES = {
    "countDistinct": "count_distinct",
    "approxCountDistinct": "approx_count_distinct",
    "any_value": "first",
    "std": "stddev",
    "nvl": "coalesce",
    "ifnull": "coalesce",
    "ln": "log",
    "power": "pow",
    "ceiling": "ceil",
    "sign": "signum",
    "day": "dayofmonth",
    "dateadd": "date_add",
    "date_diff": "datediff",
    "substr": "substring",
    "ucase": "upper",
    "lcase": "lower",
    "char_length": "length",
    "toDegrees": "degrees",
    "toRadians": "radians",
    "shiftLeft": "shiftleft",
    "shiftRight": "shiftright",
}
_FUNCTION = "write stream.map(function), a plain Python function per row"
_NO_ARRAYS = "columns hold no arrays, maps and structs: write stream.flat_map(function)"

#: A function of PySpark that is none here → what to write instead.
OTHER_FUNCTIONS: dict[str, str] = {
    "window": "write whale.window('time', '10 seconds')",
    "session_window": "write whale.session_window('time', '10 seconds')",
    "median": "write percentile_approx('column', 0.5)",
    "expr": "write the expression with whale.col, such as whale.col('a') + 1",
    "udf": f"{_FUNCTION}, or mark one of numbers with whale.compiled",
    "pandas_udf": "write stream.map(whale.columns(function))",
    "broadcast": "write stream.join_table(table, on='key')",
    "column": "write col('name')",
    **dict.fromkeys(("asc", "desc"), "top_n(3, by='column') returns rows in descending order"),
    **dict.fromkeys(
        ("row_number", "rank", "dense_rank"),
        "write stream.group_by('key').top_n(3, by='column')",
    ),
    **dict.fromkeys(
        ("lag", "lead"), "write stream.key_by('key').process(MyProcess), which keeps earlier rows"
    ),
    **dict.fromkeys(("rand", "randn", "uuid", "monotonically_increasing_id"), _FUNCTION),
    **dict.fromkeys(
        ("current_timestamp", "current_date", "now", "localtimestamp"),
        "the time at which a row is read differs from run to run; windows by the clock are"
        " whale.window(whale.processing_time(), '10 seconds')",
    ),
    **dict.fromkeys(
        ("array", "struct", "create_map", "explode", "split", "from_json", "to_json"), _NO_ARRAYS
    ),
    **{there: f"whale-ray calls it {here}" for there, here in _SECOND_NAMES.items()},
}

#: Differences of meaning: topic, Spark 3.5 (spark.sql.ansi.enabled=false), whale-ray.
DIFFERENCES: tuple[tuple[str, str, str], ...] = (
    (
        "session time zone",
        "spark.sql.session.timeZone",
        "always UTC; a timestamp with a zone shows that zone's clock (hour, date_trunc, …)",
    ),
    (
        "timestamp",
        "microseconds, without a zone of its own",
        "s, ms, us or ns, with any zone or none; cast('timestamp') is timestamp[us, tz=UTC]",
    ),
    (
        "datetime literal without a zone",
        "local time of the driver's zone",
        "a timestamp without a zone ('timestamp_ntz')",
    ),
    (
        "timestamps with and without a zone together",
        "converted by the session's zone",
        "refused: cast one of them",
    ),
    (
        "text beside a number (`s + 1`, `s == 1`)",
        "the text is cast",
        "refused: cast one of them; text literals beside dates and times are read, as in Spark",
    ),
    (
        "times beyond the range (`t + timedelta`, timestamp_seconds, date_trunc, …)",
        "an error",
        "null",
    ),
    (
        "date_trunc of a timestamp without a zone",
        "a timestamp of the session's zone",
        "stays without a zone",
    ),
    (
        "cast('10:00' as timestamp): a time alone",
        "that time today",
        "null",
    ),
    ("cast(date as number or boolean)", "null", "refused: use unix_date"),
    (
        "cast(binary as string) of bytes that are not UTF-8",
        "kept as they are",
        "null",
    ),
    (
        "floats as text or decimals",
        "Java's digits: before Java 19 sometimes one too many (2.14748365E9)",
        "the fewest digits that tell the float, as from Java 19 on (2.1474836E9)",
    ),
    (
        "regular expressions",
        "Java's, on UTF-16: `.` and `$` know more line ends, an empty match may split a character",
        "Python's `re` with ASCII classes; `$1` in a replacement as in Java",
    ),
    (
        "date patterns",
        "all of Java's",
        "of the letters y M d D E H h m s S a, and quoted text; else refused",
    ),
    (
        "isin, substring, lpad, regexp_…, shiftleft, …",
        "some take columns for positions, texts and patterns",
        "constants; contains, startswith, endswith, pow, atan2, date_add take columns",
    ),
    (
        "evaluation",
        "`when` skips what is not chosen",
        "all branches are computed; none of them raises for a value",
    ),
    (
        "exp, log, sin, … and pow",
        "Java's StrictMath",
        "the C library's; may differ in the last bit",
    ),
    (
        "unsigned integers, float16, time of day",
        "none",
        "widen as numpy does, never silently lossy",
    ),
    ("aggregates, windows, arrays, maps, structs", "functions", "not column expressions here"),
)


def spark_translation_table() -> str:
    """Return the tables of names and of differences as Markdown."""
    lines = ["| PySpark | whale-ray |", "|---|---|"]
    lines += [f"| `{_cell(spark)}` | {_code(here)} |" for spark, here in RENAMED]
    lines += ["", "| Differs | Spark 3.5 | whale-ray |", "|---|---|---|"]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in DIFFERENCES]
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    code, colon, words = text.partition(": ")
    return f"`{_cell(code)}`{colon}{_cell(words)}"


def no_function(name: str, functions: Collection[str]) -> str:
    """Return the message of an `AttributeError` for a function that `functions` does not have."""
    hint = OTHER_FUNCTIONS.get(name, "")
    if not hint and (near := get_close_matches(name, functions, n=1)):
        hint = f"did you mean {near[0]}?"
    return f"whale_ray.functions has no {name!r}" + (f": {hint}" if hint else "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
