"""docs/migrate.md: each row of its tables and each block of code is run."""

import pathlib
import re

import pytest

import hopgemm

TEXT = (pathlib.Path(__file__).parents[2] / "docs" / "migrate.md").read_text()


def section(title):
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(title):
    """(old line, new line) of a section's table."""
    cells = [
        re.findall(r"`([^`]+)`", line)[:2] for line in section(title).splitlines() if line.startswith("| `")
    ]
    assert all(len(pair) == 2 for pair in cells)
    return [tuple(pair) for pair in cells]


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL)


SHAPES = {
    "a": (32, 64),
    "b": (64, 48),
    "w": (48, 64),
    "x": (3, 32, 64),
    "y": (3, 64, 48),
    "c": (32, 48),
    "bias": (48,),
}


def integers(shape, seed):
    """-1, 0 and 1: every sum of a product, scaled and shifted, is an integer that bfloat16 holds."""
    numpy = pytest.importorskip("numpy")
    return numpy.random.default_rng(seed).integers(-1, 2, shape).astype("float32")


def needs(line):
    """Skips a row whose framework on top of JAX is not installed."""
    for word, package in (("nnx", "flax"), ("linen", "flax"), ("equinox", "equinox")):
        if word in line:
            pytest.importorskip(package)


# ---- PyTorch ----


def torch_names(device):
    torch = pytest.importorskip("torch")
    operands = {
        name: torch.from_numpy(integers(shape, seed)).to(device, torch.bfloat16)
        for seed, (name, shape) in enumerate(SHAPES.items())
    }
    layer = torch.nn.Linear(64, 48, dtype=torch.bfloat16, device=device)
    names = {
        "torch": torch,
        "F": torch.nn.functional,
        "hopgemm": hopgemm,
        "model": torch.nn.Sequential(layer),
    }
    return {**names, **operands, "out": torch.full_like(operands["c"], 7)}


def torch_result(line, device):
    """What the line gives, layers with weights of integers and applied to `a`; and the operators that ran."""
    import torch
    from torch.profiler import profile

    import hopgemm.torch  # noqa: F401

    names = torch_names(device)
    with profile() as profiled, torch.no_grad():
        result = eval(line, names)
        if isinstance(result, torch.nn.Module):
            for seed, p in enumerate(result.to(device).parameters()):
                p.copy_(torch.from_numpy(integers(tuple(p.shape), seed)))
            result = result(names["a"])
    return result, {event.name for event in profiled.events()}


def check_torch(was, now, device):
    import torch

    want, before = torch_result(was, device)
    got, after = torch_result(now, device)
    assert want.any() and got.dtype == want.dtype and torch.equal(got, want)
    assert not any(name.startswith("hopgemm::") for name in before)
    assert any(name.startswith("hopgemm::") for name in after)
    if device == "cuda":  # not the operator alone: its kernel
        assert any("hopgemm::instances" in name for name in after)


@pytest.mark.parametrize(("was", "now"), rows("PyTorch"))
def test_torch_row(was, now):
    pytest.importorskip("torch")
    check_torch(was, now, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(("was", "now"), rows("PyTorch"))
def test_gpu_torch_row(was, now):
    pytest.importorskip("torch")
    check_torch(was, now, "cuda")


def test_override_model_is_undone():
    torch = pytest.importorskip("torch")
    layer = hopgemm.torch.override_model(torch.nn.Linear(64, 48))
    layer.__class__ = torch.nn.Linear  # the way out of the last row
    assert layer(torch.ones(2, 64)).shape == (2, 48)


# ---- JAX ----


def jax_function(line):
    """The line as a function of the operands: {name: array} -> result."""
    jax = pytest.importorskip("jax")
    needs(line)
    import hopgemm.jax  # noqa: F401

    names = {"jax": jax, "jnp": jax.numpy, "lax": jax.lax, "hopgemm": hopgemm}

    def run(operands):
        if "nnx" in line:
            from flax import nnx

            layer = eval(line, {**names, **operands, "nnx": nnx, "rngs": nnx.Rngs(0)})
            layer.kernel[...], layer.bias[...] = operands["b"], operands["bias"]
            return layer(operands["a"])
        if "linen" in line:
            from flax import linen

            params = {"kernel": operands["b"], "bias": operands["bias"]}
            return eval(line, {**names, "linen": linen}).apply({"params": params}, operands["a"])
        if "equinox" in line:
            import equinox

            layer = equinox.nn.Linear(64, 48, dtype=jax.numpy.bfloat16, key=jax.random.key(0))
            where = lambda layer: (layer.weight, layer.bias)
            layer = equinox.tree_at(where, layer, (operands["w"], operands["bias"]))
            return eval(line, {**names, "equinox_layer": layer})(operands["a"])
        return eval(line, {**names, **operands})

    return run


def check_jax(was, now):
    import jax

    operands = {
        name: jax.numpy.asarray(integers(shape, seed), "bfloat16")
        for seed, (name, shape) in enumerate(SHAPES.items())
    }
    old, new = (jax.jit(jax_function(line)) for line in (was, now))
    want, got = old(operands), new(operands)
    assert want.any() and got.dtype == want.dtype and got.shape == want.shape and (got == want).all()
    program = {f: f.trace(operands).lower(lowering_platforms=("cuda",)).as_text() for f in (old, new)}
    assert "hopgemm.matmul.v1" not in program[old] and "dot_general" in program[old]
    assert "hopgemm.matmul.v1" in program[new] and "dot_general" not in program[new]


@pytest.mark.parametrize(("was", "now"), rows("JAX"))
def test_jax_row(was, now):
    check_jax(was, now)


@pytest.mark.gpu
@pytest.mark.parametrize(("was", "now"), rows("JAX"))
def test_gpu_jax_row(was, now):
    check_jax(was, now)


# ---- the rest of the page ----


def test_the_page_was_read():
    assert len(rows("PyTorch")) >= 12 and len(rows("JAX")) >= 11 and len(blocks("python")) == 6


@pytest.mark.parametrize("block", blocks("python"))
def test_block(block):
    for package in re.findall(r"^(?:import|from) (.+?)(?: import .*)?$", block, re.MULTILINE):
        for name in package.split(","):
            pytest.importorskip(name.strip().partition(".")[0])
    exec(block, {})
