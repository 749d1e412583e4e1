"""Machine words shared with another process, for code compiled by numba.

numba has no atomics of its own; these intrinsics emit LLVM's, which are right on x86-64 and on
arm64 alike. An address is an int64 as Python sees it. Words are 64 bits wide, 8-byte aligned and
little-endian.

Three orders suffice for rings and doorbells:

- `store_release` after `load_acquire` of the same word: everything written before the store is
  visible after the load. This publishes a head or a tail.
- `fence` between a store and a later load of *another* word. One side publishes, then checks
  whether the other sleeps; the other sets its sleeping flag, then checks for published work: both
  need it, as x86-64 and arm64 let a load overtake an earlier store, and both would check too early.
- `load` and `store`: plain, for private words and for bytes that the two above protect.

The functions can be called from compiled code only. Their types for Python are those of the
names below, not of the definitions that numba reads.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compiling import njit, njit_inner
from .deferred_compiling import entry_point

IS_X86: Final = platform.machine() in {"x86_64", "AMD64"}

# Numbers of the futex system call; `syscall` needs them because libc has no futex function.
_SYSTEM_CALL_FUTEX: Final = 202 if IS_X86 else 98
_EPOLL_EVENT_BYTES_MAX: Final = 16
# Without FUTEX_PRIVATE_FLAG: the word is shared between processes.
_FUTEX_WAIT: Final = 0
_FUTEX_WAKE: Final = 1

_I8 = ir.IntType(8)
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_WORD_BYTES: Final = 8

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(signature: object, *, releases_gil: bool = False) -> Callable[[Function], Function]:
    """Compile a function when it is first used, or load it from numba's cache.

    Only a kernel that waits or works for long may release the GIL: for a call of 50 ns it would
    mean standing in line behind any other Python thread, 5 ms at worst.
    """
    compiled = njit(signature, cache=True, nogil=releases_gil, boundscheck=False)
    return cast("Callable[[Function], Function]", compiled)


def direct(compiled: Function) -> Function:
    """Return a kernel as Python calls it fastest: without numba's look at the arguments' types.

    It takes 50 to 70 ns off every call. The kernel must have one signature, and the caller must
    keep to it: numbers are converted as by `int`, and of an array only the item size is checked.
    """
    return cast("Function", entry_point(compiled))


def inner(function: Function) -> Function:
    """Compile a function that only kernels call, together with them."""
    return cast("Function", njit_inner(function, boundscheck=False))


def _pointer(builder: Any, address: Any, pointee: Any = _I64) -> Any:
    return builder.inttoptr(address, pointee.as_pointer())


def _define(result: Any, arity: int, emit: Callable[[Any, Any], Any]) -> Any:
    """Make an intrinsic of `arity` int64 arguments from the instructions that `emit` writes."""
    signature = result(*[types.int64] * arity)

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        value = emit(builder, args)
        return cgutils.get_null_value(_I8.as_pointer()) if value is None else value

    # numba would see variable arguments as one tuple: hence one definition for each arity.
    def define_0(_typing: Any) -> Any:
        return signature, generate

    def define_1(_typing: Any, _first: Any) -> Any:
        return signature, generate

    def define_2(_typing: Any, _first: Any, _second: Any) -> Any:
        return signature, generate

    def define_3(_typing: Any, _first: Any, _second: Any, _third: Any) -> Any:
        return signature, generate

    return intrinsic((define_0, define_1, define_2, define_3)[arity])


def _emit_load(builder: Any, args: Any) -> Any:
    return builder.load(_pointer(builder, args[0]))


def _emit_store(builder: Any, args: Any) -> None:
    builder.store(args[1], _pointer(builder, args[0]))


def _emit_load_acquire(builder: Any, args: Any) -> Any:
    return builder.load_atomic(_pointer(builder, args[0]), "acquire", _WORD_BYTES)


def _emit_store_release(builder: Any, args: Any) -> None:
    builder.store_atomic(args[1], _pointer(builder, args[0]), "release", _WORD_BYTES)


def _emit_add(builder: Any, args: Any) -> Any:
    return builder.atomic_rmw("add", _pointer(builder, args[0]), args[1], "seq_cst")


def _emit_exchange(builder: Any, args: Any) -> Any:
    return builder.atomic_rmw("xchg", _pointer(builder, args[0]), args[1], "seq_cst")


def _emit_fence(builder: Any, _args: Any) -> None:
    builder.fence("seq_cst")


def _emit_pause(builder: Any, _args: Any) -> None:
    if IS_X86:
        pause_type = ir.FunctionType(ir.VoidType(), [])
        pause_function = cgutils.get_or_insert_function(
            builder.module, pause_type, "llvm.x86.sse2.pause"
        )
        builder.call(pause_function, [])


def _emit_prefetch_to_write(builder: Any, args: Any) -> None:
    _emit_fetch(builder, args, writes=1, locality=3)  # into the nearest cache


def _emit_prefetch(builder: Any, args: Any) -> None:
    _emit_fetch(builder, args, writes=0, locality=2)


def _emit_fetch(builder: Any, args: Any, *, writes: int, locality: int) -> None:
    pointer_type = _I8.as_pointer()
    prefetch_type = ir.FunctionType(ir.VoidType(), [pointer_type, _I32, _I32, _I32])
    prefetch_function = cgutils.get_or_insert_function(
        builder.module, prefetch_type, "llvm.prefetch.p0i8"
    )
    pointer = _pointer(builder, args[0], _I8)
    of_data = 1
    builder.call(prefetch_function, [pointer, _I32(writes), _I32(locality), _I32(of_data)])


def _emit_copy(builder: Any, args: Any) -> None:
    target = _pointer(builder, args[0], _I8)
    source = _pointer(builder, args[1], _I8)
    cgutils.raw_memcpy(builder, target, source, args[2], 1)


def _emit_fill(builder: Any, args: Any) -> None:
    target = _pointer(builder, args[0], _I8)
    cgutils.memset(builder, target, args[1], builder.trunc(args[2], _I8))


def _system_call(builder: Any, *arguments: Any) -> Any:
    call_type = ir.FunctionType(_I64, [_I64], var_arg=True)
    function = cgutils.get_or_insert_function(builder.module, call_type, "syscall")
    return builder.call(function, [_I64(_SYSTEM_CALL_FUTEX), *arguments])


def _emit_futex_wait(builder: Any, args: Any) -> Any:
    address, expected, timeout_ns = args
    timespec = cgutils.alloca_once(builder, _I64, size=_I64(2))
    billion = _I64(1_000_000_000)
    builder.store(builder.sdiv(timeout_ns, billion), timespec)
    nanoseconds = builder.gep(timespec, [_I64(1)])
    builder.store(builder.srem(timeout_ns, billion), nanoseconds)
    word = _pointer(builder, address, _I32)
    operation = _I64(_FUTEX_WAIT)
    return _system_call(builder, word, operation, expected, timespec, _I64(0), _I64(0))


def _emit_await_epoll(builder: Any, args: Any) -> Any:
    """Call epoll_wait for one event, which is discarded."""
    event = cgutils.alloca_once(builder, _I8, size=_I64(_EPOLL_EVENT_BYTES_MAX))
    call_type = ir.FunctionType(_I32, [_I32, _I8.as_pointer(), _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, call_type, "epoll_wait")
    fd = builder.trunc(args[0], _I32)
    return builder.sext(builder.call(function, [fd, event, _I32(1), _I32(-1)]), _I64)


def _emit_futex_wake(builder: Any, args: Any) -> Any:
    word = _pointer(builder, args[0], _I32)
    operation = _I64(_FUTEX_WAKE)
    return _system_call(builder, word, operation, args[1], _I64(0), _I64(0), _I64(0))


# load(address) -> word
load: Callable[[int], int] = _define(types.int64, 1, _emit_load)
# store(address, word)
store: Callable[[int, int], None] = _define(types.void, 2, _emit_store)
# load_acquire(address) -> word
load_acquire: Callable[[int], int] = _define(types.int64, 1, _emit_load_acquire)
# store_release(address, word)
store_release: Callable[[int, int], None] = _define(types.void, 2, _emit_store_release)
# add(address, amount) -> the word before; sequentially consistent
add: Callable[[int, int], int] = _define(types.int64, 2, _emit_add)
# exchange(address, word) -> the word before; sequentially consistent
exchange: Callable[[int, int], int] = _define(types.int64, 2, _emit_exchange)
# fence(): orders all accesses before it before all accesses after it, stores before loads included
fence: Callable[[], None] = _define(types.void, 0, _emit_fence)
# pause(): tells an x86 core that this loop spins; nothing elsewhere
pause: Callable[[], None] = _define(types.void, 0, _emit_pause)
# prefetch_to_write(address): fetches its cache line for writing, without waiting for it
prefetch_to_write: Callable[[int], None] = _define(types.void, 1, _emit_prefetch_to_write)
# prefetch(address): fetches its cache line into the second-level cache, without waiting for it.
# Many more lines may be on their way there than to the nearest cache: lines that miss all caches
# come twice as fast.
prefetch: Callable[[int], None] = _define(types.void, 1, _emit_prefetch)
# copy(target, source, nbytes): areas that do not overlap
copy: Callable[[int, int, int], None] = _define(types.void, 3, _emit_copy)
# fill(target, nbytes, byte)
fill: Callable[[int, int, int], None] = _define(types.void, 3, _emit_fill)
# futex_wait(address, expected, timeout_ns) -> 0 woken, -1 otherwise: another value, time is up
# or a signal. Compares the low 32 bits of the word.
futex_wait: Callable[[int, int, int], int] = _define(types.int64, 3, _emit_futex_wait)
# futex_wake(address, count) -> number of threads woken
futex_wake: Callable[[int, int], int] = _define(types.int64, 2, _emit_futex_wake)
# await_epoll(fd) -> 1 once something is ready there, -1 after a signal
await_epoll: Callable[[int], int] = _define(types.int64, 1, _emit_await_epoll)
