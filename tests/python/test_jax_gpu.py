"""hopgemm.jax on a Hopper GPU: exact integers bit for bit, transformations, command buffers, torch's bits."""

import functools
import itertools
import os
import re
import subprocess
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax_artifacts import check, stored  # noqa: E402

import hopgemm  # noqa: E402
import hopgemm.jax as hj  # noqa: E402

pytestmark = pytest.mark.gpu
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
TARGET = "hopgemm.matmul.v1"


def integers(shape, dtype=BF16, seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).integers(-3, 4, shape), dtype)


def exact(a, b):
    """The product in fp64, as an fp32 array: small integers are exact there."""
    return np.matmul(np.asarray(a, "f8"), np.asarray(b, "f8")).astype("f4")


def assert_bits(got, want):
    """Bit for bit, -0 and NaN included."""
    got, want = np.asarray(got), np.asarray(jnp.asarray(want).astype(got.dtype))
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_array_equal(got.view(f"u{got.dtype.itemsize}"), want.view(f"u{got.dtype.itemsize}"))


def optimized(f, *args):
    return jax.jit(f).lower(*args).compile().as_text()


def test_jax_runs_on_the_gpu():
    assert jax.default_backend() == "gpu"
    assert TARGET in optimized(hj.matmul, integers((64, 64)), integers((64, 64)))


SIZES = [
    (1, 1, 1),
    (1, 8, 64),
    (2, 3, 5),
    (7, 5, 3),
    (17, 33, 65),
    (64, 64, 64),
    (72, 105, 127),
    (128, 256, 64),
    (129, 136, 72),
    (256, 264, 256),
    (1000, 520, 200),
    (512, 50257, 64),
]


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("out_dtype", [None, F32])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_exact(size, dtype, out_dtype):
    m, n, k = size
    products = {
        "kn": ((m, k), (k, n), (1, 0)),
        "kk": ((m, k), (n, k), (1, 1)),
        "mn": ((k, m), (k, n), (0, 0)),
        "mk": ((k, m), (n, k), (0, 1)),
    }
    for seed, (lhs, rhs, dims) in enumerate(products.values()):
        a, b = integers(lhs, dtype, seed), integers(rhs, dtype, seed + 10)
        f = functools.partial(
            hj.dot_general,
            dimension_numbers=(((dims[0],), (dims[1],)), ((), ())),
            preferred_element_type=out_dtype,
        )
        want = exact(a.T if dims[0] == 0 else a, b.T if dims[1] == 1 else b)
        assert_bits(f(a, b), want)


def test_both_paths_are_met():
    """Odd sizes need the pack path and so a workspace, aligned ones must not."""
    assert re.search(r"u8\[\d+\]", optimized(hj.matmul, integers((33, 65)), integers((65, 17))))
    assert not re.search(r"u8\[\d+\]", optimized(hj.matmul, integers((256, 512)), integers((512, 128))))


@pytest.mark.parametrize(
    "shapes",
    [
        ((5, 128, 64), (64, 72)),
        ((5, 128, 64), (5, 64, 72)),
        ((128, 64), (5, 64, 72)),
        ((2, 1, 64, 64), (3, 64, 64)),
        ((64,), (64, 40)),
        ((40, 64), (64,)),
        ((64,), (64,)),
        ((3, 7, 5), (3, 5, 9)),
    ],
    ids=str,
)
def test_batches_and_vectors(shapes):
    a, b = (integers(s) for s in shapes)
    assert_bits(hopgemm.matmul(a, b), exact(a, b))


@pytest.mark.parametrize(
    "shapes", [((0, 8), (8, 16)), ((8, 0), (0, 16)), ((8, 16), (16, 0)), ((0, 8, 16), (0, 16, 8))], ids=str
)
def test_empty(shapes):
    a, b = (integers(s) for s in shapes)
    assert_bits(jax.jit(hj.matmul)(a, b), exact(a, b))
    for g, x in zip(jax.grad(lambda a, b: hj.matmul(a, b).astype(F32).sum(), (0, 1))(a, b), (a, b)):
        assert g.shape == x.shape and not np.asarray(g, "f4").any()


@pytest.mark.parametrize("size", [(128, 256, 64), (33, 65, 17)], ids=str)
@pytest.mark.parametrize("out_dtype", [None, F32])
def test_epilogue(size, out_dtype):
    m, n, k = size
    a, b = integers((m, k)), integers((k, n))
    for kind in (out_dtype or BF16, F32):
        bias, c = integers((n,), kind), integers((m, n), kind)
        f = lambda a, b, bias, c: hj.matmul(a, b, bias=bias, c=c, alpha=0.5, beta=-2, out_dtype=out_dtype)
        want = 0.5 * exact(a, b) - 2 * np.asarray(c, "f4") + np.asarray(bias, "f4")
        assert_bits(jax.jit(f)(a, b, bias, c), want)
        assert optimized(f, a, b, bias, c).count(f'custom_call_target="{TARGET}"') == 1
    nan = jnp.full((m, n), jnp.nan, BF16)
    assert_bits(hj.matmul(a, b, c=nan, beta=0), exact(a, b))


# ---- transformations -------------------------------------------------------------------------------------


def test_grad():
    a, b = integers((256, 128)), integers((128, 192))
    y = exact(a, b)
    da, db = jax.jit(jax.grad(lambda a, b: hj.matmul(a, b, out_dtype=F32).sum(), (0, 1)))(a, b)
    ones = np.ones_like(y)
    assert_bits(da, ones @ np.asarray(b, "f4").T)
    assert_bits(db, np.asarray(a, "f4").T @ ones)


def test_vmap_is_one_call():
    a, b = integers((5, 64, 48)), integers((48, 72))
    for axes, x, y in (
        ((0, None), a, b),
        ((0, 0), a, integers((5, 48, 72))),
        ((None, 0), a[0], integers((5, 48, 72))),
    ):
        f = jax.vmap(hj.matmul, axes)
        assert_bits(jax.jit(f)(x, y), exact(x, y))
        assert optimized(f, x, y).count(f'custom_call_target="{TARGET}"') == 1


def test_scan_cond_and_while():
    eye = jnp.eye(128, dtype=BF16)[:, ::-1]  # a permutation: sums stay exact for ever
    a = integers((64, 128))
    got = jax.jit(lambda a: lax.scan(lambda c, _: (hj.matmul(c, eye), None), a, None, 101)[0])(a)
    assert_bits(got, np.asarray(a, "f4")[:, ::-1])
    got = jax.jit(
        lambda a: lax.while_loop(lambda s: s[0] < 7, lambda s: (s[0] + 1, hj.matmul(s[1], eye)), (0, a))[1]
    )(a)
    assert_bits(got, np.asarray(a, "f4")[:, ::-1])
    f = jax.jit(
        lambda p, a: lax.cond(p, lambda: hj.matmul(a, eye), lambda: hj.matmul(a, a.T)[:, :64].repeat(2, 1))
    )
    assert_bits(f(True, a), np.asarray(a, "f4")[:, ::-1])


def test_donation_and_checkpoint():
    a, b = integers((128, 128)), integers((128, 128))
    want = exact(a, b)
    assert_bits(jax.jit(hj.matmul, donate_argnums=0)(a + 0, b), want)
    f = lambda policy: jax.jit(
        jax.grad(jax.checkpoint(lambda a: hj.matmul(a, b, out_dtype=F32).sum(), policy=policy))
    )(a)
    assert_bits(f(None), f(hj.dots_saveable))


PRODUCTS = {
    "matmul": lambda a, b: hj.matmul(a, b),
    "grad": lambda a, b: jax.grad(lambda a, b: hj.matmul(a, b).astype(F32).sum(), (0, 1))(a, b),
    "epilogue": lambda a, b: hj.matmul(a, b, bias=b[0], alpha=2),
    "transposed": lambda a, b: hj.dot_general(a, b, (((0,), (1,)), ((), ()))),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_no_copy_or_transpose_in_the_optimized_program(name):
    text = optimized(PRODUCTS[name], integers((256, 256)), integers((256, 256)))
    assert TARGET in text
    moved = re.findall(r"= \S+ (copy|transpose|copy-start)\((?!\))", text)
    assert not moved, text


# ---- command buffers and processes -----------------------------------------------------------------------


def test_a_step_of_several_calls_repeats_its_bits():
    a, b = integers((256, 256)), integers((256, 256))

    @jax.jit
    def step(a, b):
        x = hj.matmul(a, b, alpha=1 / 16)
        y = hj.matmul(x, b, alpha=1 / 16) + hj.matmul(a, x, alpha=1 / 16)
        return hj.matmul(y, y, out_dtype=F32), hj.matmul(a[:33, :65], b[:65, :17])

    first = [np.asarray(x).tobytes() for x in step(a, b)]
    for _ in range(20):
        assert [np.asarray(x).tobytes() for x in step(a, b)] == first
    assert_bits(step(a, b)[1], exact(a[:33, :65], b[:65, :17]))


FIRST_CALLS = {
    "tma": "f(a, b)",
    "packed": "f(a[:33, :65], b[:65, :17])",
    # (Not bias=b[0]: XLA wraps a call with a sliced operand in its own fusion, which it does not record.)
    "epilogue": "f(a, b, bias=(a + b)[0], c=a, alpha=0.5, beta=2)",
    "fp32": "f(a, b, out_dtype=jnp.float32)",
    "batch": "f(a.reshape(4, 64, 256), b)",
}

FIRST_CALL = """
import glob, os, sys
program, dump = sys.argv[1:]
os.environ["XLA_FLAGS"] = (f"--xla_gpu_graph_min_graph_size=1 --xla_dump_to={dump} "
                           "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUSTOM_CALL")
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import numpy as np, jax, jax.numpy as jnp, hopgemm.jax as hj
rng = np.random.default_rng(0)
a, b = (jnp.asarray(rng.integers(-1, 2, (256, 256)), jnp.bfloat16) for _ in range(2))
product = eval("lambda f, a, b: " + program)

@jax.jit
def step(a, b):
    return product(hj.matmul, a, b), product(hj.matmul, b, a)

results = [np.asarray(x) for _ in range(4) for x in step(a, b)]

def by_numpy(a, b, bias=0, c=0, alpha=1, beta=0, out_dtype=jnp.bfloat16):
    a, b, c, bias = (np.asarray(x, "f4") for x in (a, b, c, bias))
    return np.asarray(jnp.asarray(alpha * (a @ b) + beta * c + bias, out_dtype))


wanted = [product(by_numpy, a, b), product(by_numpy, b, a)] * 4
for got, want in zip(results, wanted):
    np.testing.assert_array_equal(got.astype("f4"), want.astype("f4"))
names = glob.glob(f"{dump}/*jit_step*thunk_sequence_after_thunk_passes.txt")
thunks = "".join(open(name).read() for name in names)
before, found, inside = thunks.partition("kCommandBuffer")
assert found and "kCustomCall" not in before, thunks
"""


@pytest.mark.parametrize("name", FIRST_CALLS)
def test_first_call_of_a_process_lies_in_a_command_buffer(name, tmp_path):
    command = [sys.executable, "-c", FIRST_CALL, FIRST_CALLS[name], str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


CACHED = """
import os, sys
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import numpy as np, jax, jax.numpy as jnp, hopgemm.jax as hj
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
a, b = (jnp.asarray(np.random.default_rng(i).integers(-3, 4, (72, 72)), jnp.bfloat16) for i in range(2))
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name.rpartition("/")[2]))
y = jax.block_until_ready(jax.jit(lambda a, b: hj.matmul(a, b) + hj.matmul(a[:, :35], b[:35]))(a, b))
print(events.count("cache_hits"), events.count("cache_misses"))
f = [np.asarray(x, "f4") for x in (a, b, a[:, :35], b[:35])]
rounded = [np.asarray(jnp.asarray(x @ y, jnp.bfloat16), "f4") for x, y in (f[:2], f[2:])]
np.testing.assert_array_equal(np.asarray(y), np.asarray(jnp.asarray(sum(rounded), jnp.bfloat16)))
"""


def test_a_second_process_finds_its_program_in_the_persistent_cache(tmp_path):
    for found in ("0 1", "1 0"):
        command = [sys.executable, "-c", CACHED, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.split("\n")[0] == found


def test_exported_program_with_symbolic_sizes():
    (m,) = jax.export.symbolic_shape("m")
    s = jax.ShapeDtypeStruct
    for k, n in ((64, 32), (65, 33)):
        e = jax.export.export(jax.jit(hj.matmul), platforms=["cuda"], disabled_checks=hj.export_checks)(
            s((m, k), BF16), s((k, n), BF16)
        )
        for rows in (1, 7, 128, 1000):
            a, b = integers((rows, k)), integers((k, n))
            assert_bits(e.call(a, b), exact(a, b))


@pytest.mark.parametrize("name", stored())
def test_a_stored_program_runs(name):
    pytest.importorskip("flatbuffers")  # jax.export reads programs by it
    check(name, sizes=(1, 7, 128, 1000))


def test_a_replayed_step_follows_its_arguments():
    """Command buffers keep addresses: other arrays, live at once, must not be taken for the first ones."""
    step = jax.jit(lambda a, b: (hj.matmul(a, b), hj.matmul(b, a), hj.matmul(a[:33, :65], b[:65, :17])))
    sets = [(integers((256, 256), seed=i), integers((256, 256), seed=i + 100)) for i in range(6)]
    for _ in range(5):
        for a, b in sets:
            x, y, z = step(a, b)
            assert_bits(x, exact(a, b))
            assert_bits(y, exact(b, a))
            assert_bits(z, exact(a[:33, :65], b[:65, :17]))


def test_donation_never_overwrites_an_operand_in_use():
    f = lambda c, a, b: c + hj.matmul(a, b)
    plain, donating = jax.jit(f), jax.jit(f, donate_argnums=(0, 1))
    for i in range(200):
        args = [integers((256, 256), seed=3 * i + j) for j in range(3)]
        want = np.asarray(plain(*args))
        assert_bits(donating(*(x + 0 for x in args)), want)


def test_a_hundred_donated_steps_of_scan():
    eye = jnp.eye(128, dtype=BF16)[:, ::-1]
    steps = lambda c: lax.scan(lambda c, _: (hj.matmul(c, eye), None), c, None, 100)[0]
    a = integers((64, 128))
    assert_bits(jax.jit(steps, donate_argnums=0)(a + 0), np.asarray(a, "f4"))


@pytest.mark.parametrize("orders", list(itertools.product(((0, 1), (1, 0)), repeat=3)), ids=str)
def test_layouts_that_the_caller_asks_for(orders):
    """Of a, b and the result: by row or by column."""
    layout = pytest.importorskip("jax.experimental.layout")
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    a, b, d = (layout.Format(layout.Layout(order), device) for order in orders)
    x, y = integers((72, 136)), integers((136, 200))
    f = jax.jit(hj.matmul, in_shardings=(a, b), out_shardings=d)
    got = f(jax.device_put(x, a), jax.device_put(y, b))
    assert got.format.layout.major_to_minor == orders[2]
    assert_bits(got, exact(x, y))


def test_loops_whose_trips_the_data_decide():
    turn = jnp.eye(128, dtype=BF16)[:, ::-1]  # as right operands: the columns backwards, and moved by one
    move = jnp.roll(jnp.eye(128, dtype=BF16), 1, 1)
    a = integers((3, 64, 128))

    def body(s):
        return s[0] + 1, lax.cond(s[0] % 2 == 0, lambda: hj.matmul(s[1], turn), lambda: hj.matmul(s[1], move))

    f = jax.jit(lambda a, n: lax.while_loop(lambda s: s[0] < n, body, (0, a))[1])
    want = np.asarray(a[0], "f4")
    for n in range(6):
        assert_bits(f(a[0], n), want)
        want = want[:, ::-1] if n % 2 == 0 else np.roll(want, 1, 1)
    g = jax.vmap(lambda a: lax.fori_loop(0, 5, lambda i, c: hj.matmul(c, turn), a))
    assert_bits(jax.jit(g)(a), np.asarray(a, "f4")[:, :, ::-1])


SAME_BITS = """
import os, sys, zlib
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import numpy as np, jax, jax.numpy as jnp, hopgemm
a, b = (jnp.asarray(np.random.default_rng(i).standard_normal((1024, 1024)), jnp.bfloat16) for i in range(2))
f = lambda: zlib.crc32(np.asarray(jax.jit(lambda a, b: hopgemm.matmul(a[:777], b))(a, b)).tobytes())
seen = {f() for _ in range(100)}
jax.clear_caches()
print(*(seen | {f()}))
"""


def test_the_same_bits_in_every_process():
    """Compiled again and with XLA's deterministic operations too; a hundred times each."""
    printed = set()
    for flags in ("", "", "--xla_gpu_deterministic_ops=true"):
        env = dict(os.environ, XLA_FLAGS=f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip())
        command = [sys.executable, "-c", SAME_BITS]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
        assert done.returncode == 0, done.stderr[-3000:]
        printed.add(done.stdout)
    assert len(printed) == 1 and len(printed.pop().split()) == 1


def test_operands_that_are_slices_at_odd_addresses():
    """XLA may hand over a slice in place, at an address that the copy engine cannot read."""
    x, b = integers((4096,)), integers((64, 64))
    for start in (0, 1, 3, 8, 65, 128):
        f = jax.jit(lambda x, b, start=start: hj.matmul(x[start : start + 2048].reshape(32, 64), b))
        assert_bits(f(x, b), exact(np.asarray(x, "f4")[start : start + 2048].reshape(32, 64), b))
    a = integers((5, 7, 24))
    for i in range(5):
        f = jax.jit(lambda a, b, i=i: hj.matmul(a[i], b[:24]))
        assert_bits(f(a, b), exact(np.asarray(a, "f4")[i], np.asarray(b, "f4")[:24]))


def test_equal_rows_and_batches_give_equal_bits():
    rng = np.random.default_rng(0)
    row, b = (jnp.asarray(rng.standard_normal(s), BF16) for s in ((1, 4096), (4096, 520)))
    with hopgemm.batch_invariant():
        alone = np.asarray(hj.matmul(row, b)).view("u2")
        for m in (2, 17, 128, 1765):
            many = np.asarray(hj.matmul(jnp.broadcast_to(row, (m, 4096)), b)).view("u2")
            assert (many == alone).all(), m
        a = jnp.asarray(rng.standard_normal((33, 4096)), BF16)
        batch = np.asarray(hj.matmul(jnp.broadcast_to(a, (5, 33, 4096)), jnp.broadcast_to(b, (5, 4096, 520))))
        assert (batch.view("u2") == np.asarray(hj.matmul(a, b)).view("u2")).all()


def test_sm_limit_and_batch_invariance_keep_the_result():
    a, b = integers((512, 512)), integers((512, 512))
    f = jax.jit(hj.matmul)
    want = exact(a, b)
    for n in (1, 2, 7, 66):
        with hopgemm.sm_limit(n):
            assert_bits(f(a, b), want)
    with hopgemm.batch_invariant():
        assert_bits(f(a, b), want)


# ---- torch -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("size", [(512, 768, 640), (33, 65, 17), (1, 4096, 512)], ids=str)
def test_torch_gives_the_same_bits(size, dtype):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    m, n, k = size
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s, dtype="f4") for s in ((m, k), (k, n)))
    x = hopgemm.matmul(jnp.asarray(a, dtype), jnp.asarray(b, dtype))
    tensors = (torch.from_numpy(v).cuda().to(getattr(torch, dtype)) for v in (a, b))
    y = hopgemm.matmul(*tensors).view(torch.int16).cpu().numpy().view("u2")
    np.testing.assert_array_equal(np.asarray(x).view("u2"), y)
