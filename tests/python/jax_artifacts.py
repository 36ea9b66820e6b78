"""Programs that jax.export stored with each release, tests/artifacts/VERSION/NAME.bin, and what they compute.

Every later version has to load and run them. `python tests/python/jax_artifacts.py` writes those of the
installed version, once, at its release; run it with the oldest JAX that is supported, since an older JAX need
not read what a newer one wrote. A stored file is never written anew, and a name never changes its meaning.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

import hopgemm
import hopgemm.jax as hj

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "artifacts"
BF16, F16, F32 = jnp.bfloat16, jnp.float16, jnp.float32
NUMBERS = (((0,), (1,)), ((), ()))


def _grad(a, b):
    return jax.grad(lambda a, b: hj.matmul(a, b, out_dtype=F32).sum(), (0, 1))(a, b)


def _epilogue(a, b, bias, c):
    return hj.matmul(a, b, bias=bias, c=c, alpha=2, beta=-1, out_dtype=F32)


PROGRAMS = {  # name: function, its numpy counterpart (fp32 in and out), operands; "m" is a symbolic size
    "matmul": (hj.matmul, np.matmul, [((16, 8), BF16), ((8, 24), BF16)]),
    "symbolic": (hj.matmul, np.matmul, [(("m", 64), BF16), ((64, 32), BF16)]),
    "packed": (hj.matmul, np.matmul, [(("m", 5), BF16), ((5, 7), BF16)]),
    "batch": (hj.matmul, np.matmul, [((3, 16, 8), F16), ((3, 8, 24), F16)]),
    "transposed": (
        lambda a, b: hj.dot_general(a, b, NUMBERS),
        lambda a, b: a.T @ b.T,
        [((8, 16), BF16), ((24, 8), BF16)],
    ),
    "epilogue": (
        _epilogue,
        lambda a, b, bias, c: 2 * (a @ b) - c + bias,
        [((16, 8), F16), ((8, 24), F16), ((24,), F32), ((16, 24), F32)],
    ),
    "gradients": (
        _grad,
        lambda a, b: (np.ones((len(a), b.shape[1])) @ b.T, a.T @ np.ones((len(a), b.shape[1]))),
        [((16, 8), BF16), ((8, 24), BF16)],
    ),
    "options": (
        lambda a, b: hj.matmul(a, b, sm_limit=64, batch_invariant=True),
        np.matmul,
        [((16, 8), BF16), ((8, 24), BF16)],
    ),
}


def stored():
    """Every stored program, as "VERSION/NAME"."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in FOLDER.glob("*/*.bin"))


def load(name):
    return jax.export.deserialize(bytearray((FOLDER / f"{name}.bin").read_bytes()))


def check(name, sizes=(1, 7, 128)):
    """Run a stored program on small integers and compare bit for bit, for each value of the symbolic size."""
    _, numpy, operands = PROGRAMS[name.partition("/")[2]]
    program = load(name)
    for m in sizes if any("m" in shape for shape, _ in operands) else [None]:
        shapes = [tuple(m if x == "m" else x for x in shape) for shape, _ in operands]
        rng = np.random.default_rng([len(shapes), *shapes[0]])
        arrays = [jnp.asarray(rng.integers(-1, 2, s), dtype) for s, (_, dtype) in zip(shapes, operands)]
        want = numpy(*(np.asarray(x, "f4") for x in arrays))
        jax.tree.map(
            lambda x, y: np.testing.assert_array_equal(np.asarray(x, "f4"), y), program.call(*arrays), want
        )


def export(name, platforms=("cuda",)):
    """The program, for GPUs; the tests may run it on a CPU, too, where they stand in for the kernel."""
    function, _, operands = PROGRAMS[name]
    (m,) = jax.export.symbolic_shape("m")
    args = [jax.ShapeDtypeStruct([m if x == "m" else x for x in shape], dtype) for shape, dtype in operands]
    checks = [*hj.export_checks, jax.export.DisabledSafetyCheck.platform()]
    return jax.export.export(jax.jit(function), platforms=platforms, disabled_checks=checks)(*args)


if __name__ == "__main__":
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")  # no path of this machine
    programs = {name: export(name).serialize() for name in PROGRAMS}
    folder = FOLDER / hopgemm.__version__
    folder.mkdir(parents=True)  # FileExistsError: this version has been stored
    for name, program in programs.items():
        (folder / f"{name}.bin").write_bytes(program)
    print(f"{len(programs)} programs written to {folder}, by jax {jax.__version__}")
