"""Groups of buckets of an index, which are compared with a tag at once; compiled.

A group is a line of the cache: eight buckets, of which a vector instruction or two compare all, as
those of Swiss tables and of F14 do (Bronson and Shi 2019). So a key that lies in the group of its
home is found without a branch that depends on where in it.

The functions can be called from compiled code only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = ["EQUAL", "GROUP_BUCKETS", "compared_group", "first_of"]

GROUP_BUCKETS = 8
EQUAL = (1 << GROUP_BUCKETS) - 1
"""The bits of what `compared_group` returns that tell of equal tags; those above, of no key."""

_WORD = ir.IntType(64)
_WORDS = ir.VectorType(_WORD, GROUP_BUCKETS)
_LANE = ir.IntType(32)


def _of_each(value: int) -> Any:
    return ir.Constant(_WORDS, [value] * GROUP_BUCKETS)


def _bits(builder: Any, lanes: Any) -> Any:
    """Return a word with a bit for each lane."""
    return builder.zext(builder.bitcast(lanes, ir.IntType(GROUP_BUCKETS)), _WORD)


def _emit_compared(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
    address, tag = args
    words = builder.load(builder.inttoptr(address, _WORDS.as_pointer()), align=8)
    nothing = ir.Constant(_WORDS, ir.Undefined)
    tags = builder.insert_element(nothing, tag, _LANE(0))
    lanes = ir.Constant(ir.VectorType(_LANE, GROUP_BUCKETS), [0] * GROUP_BUCKETS)
    tags = builder.shuffle_vector(tags, nothing, lanes)
    equal = builder.icmp_unsigned("==", builder.lshr(words, _of_each(32)), tags)
    empty = builder.icmp_unsigned("==", words, _of_each(0))
    equal = builder.and_(equal, builder.not_(empty))  # a tag may be 0
    above = builder.shl(_bits(builder, empty), _WORD(GROUP_BUCKETS))
    return builder.or_(_bits(builder, equal), above)


def _emit_first(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
    return builder.cttz(args[0], ir.IntType(1)(0))


@intrinsic
def _compared(_typing: Any, _address: Any, _tag: Any) -> Any:
    return types.int64(types.int64, types.uint64), _emit_compared


@intrinsic
def _first(_typing: Any, _bits_: Any) -> Any:
    return types.int64(types.int64), _emit_first


# compared_group(address, tag) -> bit i: bucket i of the group has the tag; bit 8 + i: it is empty
compared_group: Callable[[int, Any], int] = cast("Any", _compared)
# first_of(bits) -> the number of the lowest bit that is set
first_of: Callable[[Any], int] = cast("Any", _first)
