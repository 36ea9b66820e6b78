"""The label algebra, and that Python and C++ read one Problem from it."""

import ctypes
import itertools
import math
import random

import numpy as np
import pytest
from jax_host_handler import jax_host_handler as jax_host_handler

from hopgemm._jax_labels import (
    dimension_numbers_of,
    extras_of,
    groups,
    inverse,
    join,
    problem,
    spec_of,
    split,
)


def test_spec_and_dimension_numbers_are_inverse():
    assert spec_of((((1,), (0,)), ((), ())), 2, 2) == "ab,bc->ac"
    assert spec_of((((2,), (1,)), ((0,), (0,))), 3, 3) == "abc,acd->abd"
    for spec in ("ab,bc->ac", "ab,cb->ca", "abc,acd->dab", "ab,b->a", "a,a->"):
        numbers, perm = dimension_numbers_of(spec)
        lhs, rhs, out = split(spec)
        lhs, rhs, plain = split(spec_of(numbers, len(lhs), len(rhs)))
        assert join(lhs, rhs, "".join(plain[i] for i in perm)) == spec
        assert [perm[i] for i in inverse(perm)] == sorted(perm)


TAKEN = {  # spec, epilogue: m, n, k, batch
    ("ab,bc->ac", ""): ("a", "c", "b", ""),
    ("ba,cb->ca", ""): ("a", "c", "b", ""),
    ("abc,acd->abd", ""): ("b", "d", "c", "a"),
    ("abc,cd->abd", ""): ("ab", "d", "c", ""),
    ("ab,cbd->cad", ""): ("a", "d", "b", "c"),
    ("abc,bcd->ad", ""): ("a", "d", "bc", ""),
    ("a,a->", ""): ("", "", "a", ""),
    ("ab,b->a", ""): ("a", "", "b", ""),
    ("abc,cd->abd", "c=bd"): ("b", "d", "c", "a"),
    ("abc,cd->abd", "c=d"): ("ab", "d", "c", ""),
    ("abc,cd->abd", "bias=d"): ("ab", "d", "c", ""),
    ("abc,cd->abd", "bias=ad"): ("b", "d", "c", "a"),
    ("ab,cbd->cad", "bias=d"): ("a", "d", "b", "c"),
}


@pytest.mark.parametrize("spec, epilogue", TAKEN)
def test_groups(spec, epilogue):
    assert groups(spec, epilogue) == TAKEN[spec, epilogue]


@pytest.mark.parametrize(
    "spec, epilogue",
    [
        ("a,b->ab", ""),
        ("abc,acb->a", ""),
        ("abc,adb->cd", ""),
        ("ab,bc->ca", "bias=c"),
        ("ab,cbd->adc", ""),
        ("abcd,cadb->abd", ""),
    ],
)
def test_products_that_need_a_copy(spec, epilogue):
    assert groups(spec, epilogue) is None


def random_product(rng):
    """A random spec with an epilogue, and a size for every letter."""
    letters = iter("abcdefgh")
    take = lambda most: [next(letters) for _ in range(rng.randint(0, most))]
    batch, m, n, k = take(2), take(2), take(2), take(1) or [next(letters)]
    mixed = lambda *groups: "".join(itertools.chain(*rng.sample(groups, len(groups))))
    lhs, rhs = mixed(batch, m, k), mixed(batch, n, k)
    out = mixed(batch, m, n)
    extras = []
    if rng.random() < 0.4:
        extras.append("c=" + "".join(x for x in out if rng.random() < 0.8))
    if n and rng.random() < 0.4:
        extras.append("bias=" + "".join(x for x in out if x in n or (x in batch and rng.random() < 0.5)))
    return f"{lhs},{rhs}->{out}", ",".join(extras), {x: rng.randint(1, 4) for x in lhs + rhs}


def test_python_and_cpp_read_the_same_problem(jax_host_handler):
    describe = ctypes.CDLL(str(jax_host_handler)).host_describe
    rng, taken = random.Random(0), 0
    for _ in range(2000):
        spec, epilogue, size = random_product(rng)
        if groups(spec, epilogue) is None:
            continue
        lhs, rhs, out = split(spec)
        extras = extras_of(epilogue)
        labels = (lhs, rhs, out, extras.get("c", ""), extras.get("bias", ""))
        dims = [size[x] for s in labels for x in s]
        text = ctypes.create_string_buffer(1024)
        describe(spec.encode(), epilogue.encode(), (ctypes.c_int64 * len(dims))(*dims), text, 1024)
        p = problem(spec, epilogue, *([size[x] for x in s] for s in (lhs, rhs, out)))
        want = [p.m, p.n, p.k, *p.batch, *p.a_strides, *p.b_strides, *p.d_strides]
        assert text.value.decode().split() == list(map(str, want)), (spec, epilogue, size)
        taken += 1
    assert taken > 500


def test_problem_describes_the_product():
    """Walking the strides of `problem` over flat arrays gives einsum's result."""
    rng, taken = random.Random(1), 0
    for _ in range(300):
        spec, _, size = random_product(rng)
        if groups(spec) is None:
            continue
        lhs, rhs, out = split(spec)
        a, b = (
            np.arange(math.prod(size[x] for x in s)).reshape([size[x] for x in s]) % 5 for s in (lhs, rhs)
        )
        want = np.einsum(spec, a, b)
        p = problem(spec, "", a.shape, b.shape, want.shape)
        got = np.full(want.size, -1)
        swapped = bool(out) and out[-1] in groups(spec).m
        x, y = (b, a) if swapped else (a, b)
        for index in np.ndindex(*p.batch, p.m, p.n):
            *batch, row, col = index
            at = lambda strides, r, c: sum(i * s for i, s in zip((*batch, r, c), strides))
            got[at(p.d_strides, row, col)] = sum(
                x.flat[at(p.a_strides, row, k)] * y.flat[at(p.b_strides, k, col)] for k in range(p.k)
            )
        np.testing.assert_array_equal(got.reshape(want.shape), want, err_msg=spec)
        taken += 1
    assert taken > 80


@pytest.mark.parametrize(
    "spec, epilogue, dims, message",
    [
        ("ab-bc", "", [], "must look like"),
        ("ab,bc->ac", "d=ac", [2, 3, 3, 4, 2, 4], "'c=...'"),
        ("ab,bc->ac", "bias=c,c=ac", [2, 3, 3, 4, 2, 4], "'c=...'"),
        ("aB,Bc->ac", "", [2, 3, 3, 4, 2, 4], "letters a to z"),
        ("aa,ac->c", "", [2, 2, 2, 4, 4], "distinct"),
        ("ab,bc->ac", "", [2, 3, 5, 4, 2, 4], "label 'b' is 3 in one operand and 5"),
        ("ab,bc->a", "", [2, 3, 3, 4, 2], "label 'c'"),
        ("abc,adb->cd", "", [2, 3, 4, 2, 5, 3, 4, 5], "one run of adjacent dimensions"),
        ("ab,bc->ca", "bias=c", [2, 3, 3, 4, 4, 2, 4], "must end in a label of rhs"),
    ],
)
def test_cpp_refuses_with_a_reason(jax_host_handler, spec, epilogue, dims, message):
    text = ctypes.create_string_buffer(1024)
    ctypes.CDLL(str(jax_host_handler)).host_describe(
        spec.encode(), epilogue.encode(), (ctypes.c_int64 * 32)(*dims), text, 1024
    )
    assert text.value.decode().startswith("error: hopgemm: ") and message in text.value.decode()
