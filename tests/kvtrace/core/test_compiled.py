from __future__ import annotations

import signal

import numba
import pytest
from numba.core import event

from kvtrace.core.compiled import announcing


def test_a_compile_is_announced_once_and_a_second_kind_again():
    def twice(x):
        return x + x

    compiled, said = numba.njit(twice), []
    for expected, value in ((1, 1), (1, 2), (2, 1.5), (2, 2.5)):
        # Of each type of argument, as the eviction policies are told apart, one compile.
        with announcing(lambda: said.append("compiling")):
            assert compiled(value) == 2 * value
        assert len(said) == expected


def test_functions_within_are_not_announced_again():
    @numba.njit
    def inner(x):
        return x + 1

    @numba.njit
    def outer(x):
        return inner(x) + inner(x)

    said = []
    with announcing(lambda: said.append("compiling")):
        assert outer(1) == 4
    assert said == ["compiling"]


def test_an_interrupt_comes_when_what_is_being_compiled_or_loaded_is_there():
    before, steps = signal.getsignal(signal.SIGINT), []

    def compile_twice():
        with event.trigger_event("numba:compiler_lock"):
            with event.trigger_event("numba:compiler_lock"):
                signal.raise_signal(signal.SIGINT)
                steps.append("within")
            steps.append("between")
        steps.append("after")

    with pytest.raises(KeyboardInterrupt):
        compile_twice()
    assert steps == ["within", "between"]
    assert signal.getsignal(signal.SIGINT) is before
