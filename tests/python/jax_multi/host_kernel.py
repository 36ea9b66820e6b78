"""What the checks in this folder share: eight virtual CPU devices that run the custom call by a host handler.

The checks run in processes of their own, which test_jax_multi.py starts: the number of devices (XLA_FLAGS)
and what a platform lowers to hold for a whole process.
"""

import ctypes
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

import hopgemm.jax as hj
from hopgemm import _jax_lowering

__all__ = ["hj"]

TARGET = "hopgemm.matmul.v1"
F32, BF16 = jnp.float32, jnp.bfloat16
LIB = ctypes.CDLL(os.environ["HOPGEMM_TEST_HANDLER"])
LIB.host_calls.restype = ctypes.c_int64
LIB.host_last.restype = ctypes.c_char_p


jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(LIB.host_matmul), platform="cpu")
_jax_lowering.use_kernel_on("cpu")
assert jax.device_count() == 8


def rand(*shape, dtype=BF16):
    """-1, 0 and 1: sums are exact in bfloat16 too, in every order."""
    return jnp.asarray(np.random.default_rng(sum(shape)).integers(-1, 2, shape), dtype)


def last_call():
    """The attributes of the last call, the bytes of workspace it was given, and the config planned for it."""
    names = ("spec", "epilogue", "config", "sm_limit", "batch_invariant", "workspace_bytes", "planned")
    return dict(zip(names, LIB.host_last().decode().split(";")))


def same(f, g, *args, calls=None):
    """f by the kernel and g by JAX agree in value and type; the handler ran `calls` times, or at least 1."""
    before = LIB.host_calls()
    x, y = jax.block_until_ready(f(*args)), jax.jit(g)(*args)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a, "f8"), np.asarray(b, "f8")), x, y)
    jax.tree.map(type_eq, x, y)
    n = LIB.host_calls() - before
    assert n == calls if calls is not None else n > 0, f"handler ran {n} times, expected {calls}"


def type_eq(a, b):
    assert str(jax.typeof(a)) == str(jax.typeof(b)), (jax.typeof(a), jax.typeof(b))


def loss(mm):
    return lambda a, b: (mm(a, b) ** 2).sum()


def cuda_text(f, *args):
    """StableHLO for a GPU, lowered on a machine that has none."""
    return jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def no_copies(text):
    """Nothing that moves data stands in the program."""
    found = re.findall(r"stablehlo\.(?:transpose|copy|reshape|dot_general)", text)
    assert not found, found


def compiled(f, *args):
    """f as an executable for these arguments: it can be called, and read."""
    return jax.jit(f).lower(*args).compile()


def collectives(program):
    """The collectives of an executable, and its text."""
    text = program.as_text()
    kinds = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
    return {c for c in kinds if c + "(" in text or c + "-start(" in text}, text


def mesh(kind, shape=(2, 4), names=("x", "y")):
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(names))


def put(value, m, spec):
    return jax.device_put(value, NamedSharding(m, spec))


MM = (((1,), (0,)), ((), ()))  # dot_general's numbers of a @ b
A, B = rand(8, 4), rand(4, 6)
A3, B3 = rand(5, 8, 4), rand(5, 4, 6)
X, W = rand(16, 8), rand(8, 12)
X3, W3 = rand(4, 16, 8), rand(4, 8, 12)
