"""A product as labels, "ab,bc->ac": one letter per dimension of both operands and of the result.

Labels are closed under everything JAX does to a product: a transpose rule permutes the three strings, a
batching rule adds a letter, a transpose of the result reorders letters. The same string tells the kernel
which operand is K-major (src/bindings/xla_spec.h reads it) and is the sharding rule. Pure string and integer
arithmetic: nothing of JAX here.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

MAX_BATCH_DIMS = 6  # kMaxBatchDims of src/api/gemm.h


def split(spec: str) -> tuple[str, str, str]:
    """The label strings of lhs, rhs and result."""
    operands, out = spec.split("->")
    lhs, rhs = operands.split(",")
    return lhs, rhs, out


def rename(lhs: str, rhs: str, *others: str) -> list[str]:
    """The strings, letters renamed by first appearance in lhs and rhs: equal products give equal strings."""
    names = {c: chr(97 + i) for i, c in enumerate(dict.fromkeys(lhs + rhs))}
    return ["".join(names[c] for c in s) for s in (lhs, rhs, *others)]


def join(lhs: str, rhs: str, out: str) -> str:
    """The spec of three label strings, letters renamed."""
    return "{},{}->{}".format(*rename(lhs, rhs, out))


def spec_of(dimension_numbers: Any, lhs_ndim: int, rhs_ndim: int) -> str:
    """dot_general's dimension numbers (result: batch, kept of lhs, kept of rhs) as a spec."""
    (lhs_k, rhs_k), (lhs_b, rhs_b) = dimension_numbers
    lhs = [chr(97 + i) for i in range(lhs_ndim)]
    rhs = [chr(97 + lhs_ndim + i) for i in range(rhs_ndim)]
    for i, j in zip((*lhs_k, *lhs_b), (*rhs_k, *rhs_b)):
        rhs[j] = lhs[i]
    batch = [lhs[i] for i in lhs_b]
    gone = {*batch, *(lhs[i] for i in lhs_k)}
    out = batch + [c for c in lhs if c not in gone] + [c for c in rhs if c not in gone]
    return join("".join(lhs), "".join(rhs), "".join(out))


def dimension_numbers_of(spec: str) -> tuple[Any, tuple[int, ...]]:
    """dot_general's dimension numbers, and the permutation that brings its result into the spec's order."""
    lhs, rhs, out = split(spec)
    k = [c for c in lhs if c in rhs and c not in out]
    batch = [c for c in out if c in lhs and c in rhs]
    kept_lhs = [c for c in lhs if c in out and c not in rhs]
    plain = batch + kept_lhs + [c for c in rhs if c in out and c not in lhs]
    contract, shared = (tuple(tuple(map(s.index, group)) for s in (lhs, rhs)) for group in (k, batch))
    return (contract, shared), tuple(map(plain.index, out))


def inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes `perm`."""
    return tuple(map(perm.index, range(len(perm))))


def extras_of(epilogue: str) -> dict[str, str]:
    """The labels of the epilogue's operands in the order they are passed: "c=ac,bias=c" has c and bias."""
    return dict(part.split("=") for part in epilogue.split(",")) if epilogue else {}


class Groups(NamedTuple):
    """The labels that make up each dimension of the GEMM."""

    m: str
    n: str
    k: str
    batch: str


@functools.cache
def groups(spec: str, epilogue: str = "") -> Groups | None:
    """The GEMM dimensions of a product that the kernel takes in place; None where it would need a copy first.

    Each of m, n, k is a run of adjacent labels in the same order wherever it appears: one dimension to the
    kernel. The rest are batch dimensions, which make at most two runs, none of them innermost. A bias lies
    along n.
    """
    lhs, rhs, out = split(spec)
    extras = extras_of(epilogue)
    c, bias = extras.get("c", ""), extras.get("bias")

    def adjacent(group: str, *where: str) -> bool:
        return all(group in s for s in where) and (group in c or not {*group} & {*c})

    k = "".join(x for x in lhs if x in rhs and x not in out)
    # A label of one operand alone is a batch dimension where the bias has it (m) or lacks it (n).
    m = "".join(x for x in out if x in lhs and x not in rhs and x not in (bias or ""))
    n = "".join(x for x in out if x in rhs and x not in lhs and (bias is None or x in bias))
    while m and not adjacent(m, lhs, out):
        m = m[1:]
    while n and not adjacent(n, rhs, out, *([bias] if bias is not None else [])):
        n = n[1:]
    batch = "".join(x for x in out if x not in m + n)
    everywhere = [s for s in (lhs, rhs, out, c, bias) if s]
    apart = sum(
        not all(x + y in s or not {x, y} & {*s} for s in everywhere) for x, y in zip(batch, batch[1:])
    )
    if not k or not all(k in s for s in (lhs, rhs)) or len(batch) > MAX_BATCH_DIMS or apart > 1:
        return None
    if {lhs[-1], rhs[-1], *out[-1:]} & {*batch} or bias is not None and out[-1:] not in {*n}:
        return None
    return Groups(m, n, k, batch)


class Problem(NamedTuple):
    """What hopgemm._core.plan asks: sizes, and strides in elements as [*batch, row, col]."""

    m: int
    n: int
    k: int
    batch: list[Any]
    a_strides: list[Any]
    b_strides: list[Any]
    d_strides: list[Any]


def problem(spec: str, epilogue: str, lhs_shape: Any, rhs_shape: Any, out_shape: Any) -> Problem:
    """The strided GEMM that row-major operands of these shapes make; `groups(spec, epilogue)` is not None.

    A result whose inner label is of m is the transposed product: operands change places, as in xla_spec.h.
    """
    lhs, rhs, out = split(spec)
    g = groups(spec, epilogue)
    assert g is not None, spec
    size = {**dict(zip(lhs, lhs_shape)), **dict(zip(rhs, rhs_shape))}
    product = functools.partial(functools.reduce, lambda x, y: x * y)

    def strides(labels: str, rows: str, cols: str) -> list[Any]:
        step, at = 1, {}
        for x in reversed(labels):
            at[x] = step
            step = step * size[x]
        return [at.get(x, 0) for x in (*g.batch, rows[-1:], cols[-1:])]

    m, n = g.m, g.n
    if out and out[-1] in m:
        lhs, rhs, m, n = rhs, lhs, n, m
    m_size, n_size, k_size = (product((size[x] for x in run), 1) for run in (m, n, g.k))
    return Problem(
        m_size,
        n_size,
        k_size,
        [size[x] for x in g.batch],
        strides(lhs, m, g.k),
        strides(rhs, g.k, n),
        strides(out, m, n),
    )
