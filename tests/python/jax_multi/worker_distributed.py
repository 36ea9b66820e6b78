"""One of two processes of a JAX program, four CPU devices each: `worker_distributed.py PORT RANK`.

Every kind of axis, split over both processes, forward and backward; each process compares its own shards.
"""

import sys

import jax

PORT, RANK = map(int, sys.argv[1:])
jax.distributed.initialize(f"127.0.0.1:{PORT}", num_processes=2, process_id=RANK)

import numpy as np  # noqa: E402
from check_axis_types import AUTO, EXPLICIT, LAYOUTS, MANUAL, mesh_of, on  # noqa: E402
from host_kernel import LIB, TARGET, W, X, collectives, compiled, hj, loss  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402

A, B = (np.asarray(x) for x in (X, W))
A32, B32 = A.astype("f4"), B.astype("f4")
WANT = A32 @ B32


def put(value, m, spec):
    return jax.make_array_from_callback(value.shape, NamedSharding(m, spec), lambda index: value[index])


def compare(got, want):
    for shard in got.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data, "f4"), want[shard.index])


assert jax.process_count() == 2 and jax.local_device_count() == 4
for kind in (EXPLICIT, AUTO, MANUAL):
    m = mesh_of(kind)
    assert len({d.process_index for d in m.devices[:, 0]}) == 2  # "x" spans the processes
    with jax.set_mesh(m):
        for layout in ("row", "k_two_axes"):
            lhs, rhs, out, split_k = LAYOUTS[layout]
            f = on(kind, m, lhs, rhs, out, split_k)(hj.matmul)
            a, b, before = put(A, m, lhs), put(B, m, rhs), LIB.host_calls()
            program = compiled(f, a, b)
            compare(program(a, b), WANT)
            assert LIB.host_calls() - before == 4
            found, text = collectives(program)
            assert found == ({"all-reduce"} if split_k else set()) and TARGET in text
            backward = compiled(jax.grad(loss(lambda *x, f=f: f(*x)), (0, 1)), a, b)
            assert "all-gather" not in collectives(backward)[0]
            for got, want in zip(backward(a, b), (2 * WANT @ B32.T, A32.T @ (2 * WANT))):
                compare(got, np.asarray(jax.numpy.asarray(want, got.dtype), "f4"))
print("done")
