"""Compiles a few programs with a persistent compilation cache: `worker_cache.py FOLDER`.

Prints for each program how often the cache was hit and missed, as JSON, after comparing its result.
"""

import functools
import json
import sys

import jax
import numpy as np
from host_kernel import W, X, hj, last_call, mesh, put
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

WANT = np.asarray(X, "f4") @ np.asarray(W, "f4")
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
# Auto axes need it to hit at all: JAX writes the partitioner's address into such programs.
jax.config.update("jax_remove_custom_partitioning_ptr_from_cache_key", True)
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name.rpartition("/")[2]))


def counted(f, a, b):
    events.clear()
    y = jax.block_until_ready(jax.jit(f)(a, b))
    found = [events.count("cache_hits"), events.count("cache_misses")]
    np.testing.assert_array_equal(np.asarray(y, "f4"), WANT)
    return found


invariant = functools.partial(hj.matmul, batch_invariant=True)
counts = {"one device": counted(hj.matmul, X, W)}
counts["one device, packed"] = counted(
    lambda a, b: hj.matmul(a[:, :5], b[:5]) + hj.matmul(a[:, 5:], b[5:]), X, W
)
for kind in (AxisType.Explicit, AxisType.Auto):
    m = mesh(kind)
    with jax.set_mesh(m):
        a, b = put(X, m, P("x", None)), put(W, m, P(None, "y"))
        for name, f in (("", hj.matmul), (", batch_invariant", invariant)):
            counts[kind.name + name] = counted(f, a, b)
            # Not the executable of a program that differs in its options alone.
            assert last_call()["batch_invariant"] == str(int(f is invariant))
print(json.dumps(counts))
