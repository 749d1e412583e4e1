"""The intrinsics work as documented, and compile to the right instructions on both processors.

Memory order cannot be tested by running: the assembly is read instead, for arm64 as well, which
LLVM can write on any machine.
"""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest

from whale_ray.transport import atomics
from whale_ray.transport.atomics import kernel

load, store = atomics.load, atomics.store
load_acquire, store_release = atomics.load_acquire, atomics.store_release
add, exchange, fence, pause = atomics.add, atomics.exchange, atomics.fence, atomics.pause
copy, fill = atomics.copy, atomics.fill
prefetch, prefetch_to_write = atomics.prefetch, atomics.prefetch_to_write
futex_wait, futex_wake = atomics.futex_wait, atomics.futex_wake


@kernel("int64(int64)")
def _use_all(address: int) -> int:
    prefetch(address)
    prefetch_to_write(address)
    store(address, 5)
    store_release(address + 8, load(address) + 1)
    fence()
    pause()
    before = add(address, 10) * 100 + exchange(address + 8, 7)
    fill(address + 16, 8, 0xDB)
    copy(address + 24, address + 15, 4)
    return before * 100 + load_acquire(address)


@kernel("void(int64, int64)", releases_gil=True)
def _add_often(address: int, times: int) -> None:
    for _ in range(times):
        add(address, 1)


@kernel("int64(int64, int64, int64)", releases_gil=True)
def _wait(address: int, expected: int, timeout_ns: int) -> int:
    return futex_wait(address, expected, timeout_ns)


@kernel("int64(int64, int64)")
def _wake(address: int, count: int) -> int:
    return futex_wake(address, count)


def test_words_and_bytes():
    words = np.zeros(4, np.int64)
    assert _use_all(words.ctypes.data) == (5 * 100 + 6) * 100 + 15
    assert words[:2].tolist() == [15, 7]
    assert words[2:].view(np.uint8).tolist() == [0xDB] * 8 + [0, 0xDB, 0xDB, 0xDB, 0, 0, 0, 0]


def test_a_direct_call_does_the_same():
    words = np.zeros(4, np.int64)
    use_all = atomics.direct(_use_all)
    assert use_all(words.ctypes.data) == (5 * 100 + 6) * 100 + 15
    with pytest.raises(TypeError, match="int"):
        use_all(None)


def test_adding_is_atomic():
    words = np.zeros(1, np.int64)
    threads = [
        threading.Thread(target=_add_often, args=(words.ctypes.data, 50_000)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert words[0] == 150_000


def test_a_futex_does_not_sleep_on_another_value():
    words = np.array([5, 0], np.int64)
    assert _wait(words.ctypes.data, 4, 3_600_000_000_000) == -1


def test_a_futex_compares_the_low_half_of_the_word():
    words = np.array([(9 << 32) | 5], np.int64)
    assert _wait(words.ctypes.data, 5, 1) == -1, "slept until the time was up"


def test_a_futex_wakes_sleepers():
    words = np.zeros(1, np.int64)
    answers = []
    sleeper = threading.Thread(
        target=lambda: answers.append(_wait(words.ctypes.data, 0, 60_000_000_000))
    )
    sleeper.start()
    while _wake(words.ctypes.data, 1) == 0:
        pass
    sleeper.join()
    assert answers == [0]


INSTRUCTIONS = [
    ("_emit_load_acquire", 1, "x86_64", r"movq\s+\(%rdi\), %rax"),
    ("_emit_load_acquire", 1, "aarch64", r"ldap?r\s+x0, \[x0\]"),
    ("_emit_store_release", 2, "x86_64", r"movq\s+%rsi, \(%rdi\)"),
    ("_emit_store_release", 2, "aarch64", r"stlr\s+x1"),
    ("_emit_fence", 0, "x86_64", r"mfence|lock"),
    ("_emit_fence", 0, "aarch64", r"dmb\s+ish\n"),
    ("_emit_add", 2, "x86_64", r"lock\s+xaddq"),
    ("_emit_add", 2, "aarch64", r"ldaxr[\s\S]*stlxr"),
    ("_emit_exchange", 2, "x86_64", r"xchgq"),
    ("_emit_exchange", 2, "aarch64", r"ldaxr[\s\S]*stlxr"),
    ("_emit_futex_wait", 3, "x86_64", r"syscall[\s\S]*xorl\s+%eax, %eax\s+callq"),
    ("_emit_futex_wait", 3, "aarch64", r"bl\s+syscall"),
]


@pytest.mark.parametrize(("emit", "arity", "processor", "expected"), INSTRUCTIONS)
def test_the_instructions_have_the_order(emit: str, arity: int, processor: str, expected: str):
    assembly = _assembly(f"{processor}-unknown-linux-gnu", getattr(atomics, emit), arity)
    assert re.search(expected, assembly), assembly


def _assembly(triple: str, emit, arity: int) -> str:
    import llvmlite.binding as llvm
    from llvmlite import ir

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    word = ir.IntType(64)
    module = ir.Module()
    module.triple = triple
    function = ir.Function(module, ir.FunctionType(word, [word] * arity), "subject")
    builder = ir.IRBuilder(function.append_basic_block())
    value = emit(builder, function.args)
    builder.ret(word(0) if value is None else value)
    parsed = llvm.parse_assembly(str(module))
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=2)
    return machine.emit_assembly(parsed)
