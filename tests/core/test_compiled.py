from __future__ import annotations

import numba

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
