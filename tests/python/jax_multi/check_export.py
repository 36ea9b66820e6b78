"""jax.export: for GPUs without a GPU, with symbolic sizes, in fresh processes, over several devices."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from host_kernel import BF16, F32, TARGET, A, B, W, X, hj, last_call, loss, mesh, put, rand, same
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

S = jax.ShapeDtypeStruct


def export(f, platforms, *args):
    return jax.export.export(jax.jit(f), platforms=platforms, disabled_checks=hj.export_checks)(*args)


def test_needs_the_exemption():
    with pytest.raises(ValueError, match="custom call"):
        jax.export.export(jax.jit(hj.matmul), platforms=["cuda"])(A, B)


def test_symbolic_m_chooses_at_launch():
    (m,) = jax.export.symbolic_shape("m")
    e = export(jax.grad(loss(hj.matmul), (0, 1)), ["cuda"], S((m, 64), BF16), S((64, 32), BF16))
    text = e.mlir_module()
    assert (
        text.count("@" + TARGET) == 3
        and text.count('config = "auto"') == 3
        and "stablehlo.transpose" not in text
    )
    assert str(jax.export.deserialize(e.serialize()).out_avals) == str(e.out_avals)
    assert (
        "@" + TARGET
        in export(jax.vmap(hj.matmul, (0, None)), ["cuda"], S((m, 8, 4), BF16), S((4, 6), BF16)).mlir_module()
    )
    bias = functools.partial(hj.matmul, bias=jnp.ones(32, F32), alpha=2)
    assert 'epilogue = "bias=c"' in export(bias, ["cuda"], S((m, 64), BF16), S((64, 32), BF16)).mlir_module()


@pytest.mark.parametrize("k, n, least", [(64, 32, 0), (128, 32, 32 << 20), (5, 6, 0)])
def test_symbolic_sizes_come_with_enough_workspace(k, n, least):
    """For copies of operands that TMA cannot read, and, from two steps of K on, for the sums of a tail."""
    (m,) = jax.export.symbolic_shape("m")
    e = export(hj.matmul, ["cpu"], S((m, k), BF16), S((k, n), BF16))
    for rows in (1, 3, 8, 1000):
        a, b = jnp.ones((rows, k), BF16), jnp.ones((k, n), BF16)
        same(e.call, jnp.matmul, a, b, calls=1)
        workspace = int(last_call()["workspace_bytes"])
        assert last_call()["config"] == "auto"
        padded = -(-k // 8) * 8 * 2
        assert workspace == least if k % 8 == 0 else workspace >= least + (rows + n) * padded + 512


def test_a_program_without_room_for_a_tail_runs_without_one():
    """One that an earlier version lowered, whose choice at launch had none."""
    options = dict(spec="ab,bc->ac", epilogue="", config="auto", alpha=np.float32(1), beta=np.float32(0))
    options |= dict(sm_limit=np.int64(0), batch_invariant=False)
    a, b, d = rand(64, 8192), rand(8192, 64), S((64, 64), BF16)
    found = jax.ffi.ffi_call(TARGET, d)(a, b, **options)
    assert "+tail" not in last_call()["planned"]
    with_room, _ = jax.ffi.ffi_call(TARGET, (d, S((32 << 20,), "uint8")))(a, b, **options)
    assert "+tail" in last_call()["planned"]
    assert (found == with_room).all() and (found == jnp.matmul(a, b)).all()


RUN = """
import sys, numpy as np, jax, jax.numpy as jnp
e = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
for m in (3, 8):
    a, b = (jnp.asarray(np.arange(r * c).reshape(r, c) % 3, jnp.bfloat16) for r, c in ((m, 4), (4, 6)))
    np.testing.assert_array_equal(np.asarray(e.call(a, b), "f4"), np.asarray(a, "f4") @ np.asarray(b, "f4"))
assert not any(name.startswith("hopgemm") for name in sys.modules)
"""


def test_both_platforms_run_without_us_where_xla_multiplies(tmp_path):
    """Exported in a process where the CPU has XLA's product, and run in one that does not import hopgemm."""
    saved = tmp_path / "program.bin"
    code = f"""
import jax, jax.numpy as jnp, hopgemm.jax as hj
m, = jax.export.symbolic_shape("m")
S = jax.ShapeDtypeStruct
e = jax.export.export(jax.jit(hj.matmul), platforms=["cpu", "cuda"], disabled_checks=hj.export_checks)(
    S((m, 4), jnp.bfloat16), S((4, 6), jnp.bfloat16))
text = e.mlir_module()
assert "@{TARGET}" in text and "stablehlo.case" in text and "stablehlo.dot_general" in text
open({str(saved)!r}, "wb").write(e.serialize())
"""
    for args in ((code,), (RUN, saved)):
        done = subprocess.run(
            [sys.executable, "-c", *map(str, args)], capture_output=True, text=True, env=os.environ
        )
        assert done.returncode == 0, done.stderr


RUN_THE_CALL = """
import ctypes, os, sys
import hopgemm.jax, jax
lib = ctypes.CDLL(os.environ["HOPGEMM_TEST_HANDLER"])
jax.ffi.register_ffi_target("hopgemm.matmul.v1", jax.ffi.pycapsule(lib.host_matmul), platform="cpu")
exec(open(sys.argv[2]).read())
assert lib.host_calls() == 2
"""


def test_a_fresh_process_that_imports_hopgemm_jax_alone_runs_the_call(tmp_path):
    """The call itself: exported here, where the CPU stands in for the GPU, with a symbolic M."""
    (m,) = jax.export.symbolic_shape("m")
    saved, body = tmp_path / "program.bin", tmp_path / "run.py"
    saved.write_bytes(export(hj.matmul, ["cpu"], S((m, 4), BF16), S((4, 6), BF16)).serialize())
    body.write_text(RUN.rpartition("assert not any")[0])
    command = [sys.executable, "-c", RUN_THE_CALL, str(saved), str(body)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr


def test_several_devices():
    m = mesh(AxisType.Auto)
    args = [
        S((16, 8), BF16, sharding=NamedSharding(m, P("x", None))),
        S((8, 12), BF16, sharding=NamedSharding(m, P(None, "y"))),
    ]
    f = jax.shard_map(hj.matmul, mesh=m, in_specs=(P("x", None), P(None, "y")), out_specs=P("x", "y"))
    assert "@" + TARGET in export(f, ["cuda"], *args).mlir_module()
    e = export(hj.matmul, ["cuda"], *args)  # Auto: the partitioner's callback would not travel
    assert "CustomSPMDPartitioning" not in e.mlir_module() and "stablehlo.dot_general" in e.mlir_module()
    jax.export.deserialize(e.serialize())


def test_explicit_axes():
    m = mesh(AxisType.Explicit)
    with jax.set_mesh(m):
        args = [
            S((16, 8), BF16, sharding=NamedSharding(m, P("x", "y"))),
            S((8, 12), BF16, sharding=NamedSharding(m, P("y", None))),
        ]
        dot = lambda f: lambda a, b: (f(a, b, (((1,), (0,)), ((), ())), out_sharding=P("x", None)) ** 2).sum()
        f, g = (jax.grad(dot(x), (0, 1)) for x in (hj.dot_general, jax.lax.dot_general))
        text = export(f, ["cuda"], *args).mlir_module()
        assert text.count("@" + TARGET) == 3 and "CustomSPMDPartitioning" not in text
        e = jax.export.deserialize(export(f, ["cpu"], *args).serialize())
        a, b = put(X, m, P("x", "y")), put(W, m, P("y", None))
        for ours, theirs in zip(e.call(a, b), g(a, b)):
            np.testing.assert_allclose(np.asarray(ours, "f4"), np.asarray(theirs, "f4"), rtol=2e-2)
