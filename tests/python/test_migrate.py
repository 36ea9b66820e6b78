"""docs/migrate.md: each row of its tables, what it says of it, and each block of code is run."""

import collections
import pathlib
import re
import subprocess
import sys
import types

import pytest

import hopgemm

HERE = pathlib.Path(__file__).parent
TEXT = (HERE.parents[1] / "docs" / "migrate.md").read_text()
PARTS = re.split(r"^##+ (.*)\n", TEXT, flags=re.MULTILINE)
SECTIONS = dict(zip(PARTS[1::2], PARTS[2::2], strict=True))
HUGGING_FACE = "A Hugging Face model, under CUDA graphs"
PLUGIN = "A serving engine's plug-in"

Row = collections.namedtuple("Row", "was now differs undo")


def rows(title):
    lines = [line for line in SECTIONS[title].splitlines() if line.startswith("| `")]
    return [Row(*(cell.strip() for cell in line.strip("| ").split(" | "))) for line in lines]


def pairs(title):
    """(old line, new line) of a section's table."""
    return [(row.was.strip("`"), row.now.strip("`")) for row in rows(title)]


def differences(title):
    return sorted({row.differs for row in rows(title)} - {"nothing else"})


def blocks(title, gpu=False):
    """The section's Python; with what only a GPU runs."""
    found = re.findall(r"^```python( gpu)?\n(.*?)```", SECTIONS[title], re.DOTALL | re.MULTILINE)
    return [code for mark, code in found if gpu or not mark]


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


def profiled(call):
    """What the call gives; and the names of the operators and kernels that ran."""
    import torch
    from torch.profiler import profile

    with profile() as seen, torch.no_grad():
        result = call()
    return result, {event.name for event in seen.events()}


def is_ours(names):
    return any(name.startswith("hopgemm::") for name in names)


def torch_result(line, device):
    """What the line gives, layers with weights of integers and applied to `a`; and what ran."""
    import torch

    import hopgemm.torch  # noqa: F401

    names = torch_names(device)

    def run():
        result = eval(line, names)
        if isinstance(result, torch.nn.Module):
            for seed, p in enumerate(result.to(device).parameters()):
                p.copy_(torch.from_numpy(integers(tuple(p.shape), seed)))
            result = result(names["a"])
        return result

    return profiled(run)


def check_torch(was, now, device):
    import torch

    want, before = torch_result(was, device)
    got, after = torch_result(now, device)
    assert want.any() and got.dtype == want.dtype and torch.equal(got, want)
    assert is_ours(after) and not is_ours(before)
    if device == "cuda":  # not the operator alone: its kernel
        assert any("hopgemm::instances" in name for name in after)


@pytest.mark.parametrize(("was", "now"), pairs("PyTorch"))
def test_torch_row(was, now):
    pytest.importorskip("torch")
    check_torch(was, now, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(("was", "now"), pairs("PyTorch"))
def test_gpu_torch_row(was, now):
    pytest.importorskip("torch")
    check_torch(was, now, "cuda")


@pytest.mark.gpu
def test_gpu_kernels_have_the_name_of_the_config():
    pytest.importorskip("torch")
    t = types.SimpleNamespace(**torch_names("cuda"))
    _, names = profiled(lambda: hopgemm.matmul(t.a, t.b))
    config = hopgemm.plan(t.a, t.b).config.partition("+")[0]
    assert any(f"hopgemm::instances::{config}" in name for name in names) and "aten::mm" not in names


def test_a_transposed_view_is_read_in_place():
    torch = pytest.importorskip("torch")
    w = torch.ones(1024, 512).bfloat16()
    plan = hopgemm.plan(torch.ones(256, 512).bfloat16(), w.T)
    assert plan.majors == "kk" and not plan.pack_b


# ---- PyTorch: what differs ----

TORCH_DIFFERENCES = {}


def differs(sentence, checks=TORCH_DIFFERENCES):
    return lambda check: checks.setdefault(sentence, check)


@pytest.mark.parametrize("sentence", differences("PyTorch"))
def test_torch_difference(sentence):
    pytest.importorskip("torch")
    import hopgemm.torch  # noqa: F401

    TORCH_DIFFERENCES[sentence](types.SimpleNamespace(**torch_names("cpu")))


@differs("batches are allowed too")
def batches(t):
    with pytest.raises(RuntimeError):
        t.torch.mm(t.x, t.y)
    assert t.torch.equal(hopgemm.matmul(t.x, t.y), t.torch.bmm(t.x, t.y))


@differs("`out` of another shape is refused, not resized")
def out_is_not_resized(t):
    theirs, ours = t.out.new_empty(0), t.out.new_empty(0)
    assert t.torch.mm(t.a, t.b, out=theirs).shape == theirs.shape == t.out.shape
    with pytest.raises(ValueError):
        hopgemm.matmul(t.a, t.b, out=ours)
    assert ours.shape == (0,)


@differs("`c` only counts with `beta`")
def c_wants_beta(t):
    product = hopgemm.matmul(t.a, t.b)
    assert t.torch.equal(hopgemm.matmul(t.a, t.b, c=t.c), product)
    assert not t.torch.equal(t.torch.addmm(t.c, t.a, t.b), product)


@differs("`bias` is (N,), always added once")
def bias_is_a_vector(t):
    for bias in (t.bias[None], t.c[:, :1], t.c):  # all of them good for addmm
        assert t.torch.addmm(bias, t.a, t.b).shape == t.c.shape
        with pytest.raises(ValueError):
            hopgemm.matmul(t.a, t.b, bias=bias)
    product, c, bias = t.a.float() @ t.b.float(), t.c.float(), t.bias.float()
    got = hopgemm.matmul(t.a, t.b, bias=t.bias, c=t.c, beta=2, alpha=3)
    assert t.torch.equal(got.float(), 3 * product + 2 * c + bias)
    assert t.torch.equal(t.torch.addmm(t.bias, t.a, t.b, beta=2).float(), product + 2 * bias)


@differs("batches broadcast, up to 6 batch dimensions")
def batches_broadcast(t):
    with pytest.raises(RuntimeError):
        t.torch.bmm(t.x[:1], t.y)
    want = t.x[0] @ t.y
    assert t.torch.equal(hopgemm.matmul(t.x[:1], t.y), want)
    six = (1,) * 6 + t.a.shape
    assert t.torch.equal(hopgemm.matmul(t.x[0].view(six), t.y).view(want.shape), want)
    with pytest.raises(ValueError):
        hopgemm.matmul(t.x[0].view(1, *six), t.y)


@differs("`beta` is 0 unless given")
def beta_is_zero(t):
    product = t.torch.bmm(t.x, t.y)
    assert t.torch.equal(hopgemm.matmul(t.x, t.y, c=t.c), product)
    assert not t.torch.equal(t.torch.baddbmm(t.c, t.x, t.y), product)


@differs("no `einsum`: say the product as a matmul")
def einsum_as_matmul(t):
    assert not hasattr(hopgemm, "einsum") and not hasattr(hopgemm.torch, "einsum")
    want = t.torch.einsum("bmk,nk->bnm", t.x, t.w)
    assert t.torch.equal(hopgemm.matmul(t.x, t.w.T).mT, want)


@differs("float32 and the like stay with torch")
def others_stay_with_torch(t):
    for dtype in (t.torch.float32, t.torch.float64):
        args = [tensor.to(dtype) for tensor in (t.a, t.w, t.bias)]
        got, names = profiled(lambda: hopgemm.torch.linear(*args))
        assert t.torch.equal(got, t.F.linear(*args)) and not is_ours(names)
        with pytest.raises(TypeError):
            hopgemm.matmul(args[0], args[1].T)


@differs("same state dict")
def same_state_dict(t):
    ours = hopgemm.torch.Linear(64, 48, dtype=t.torch.bfloat16)
    theirs = t.model[0]
    ours.load_state_dict(theirs.state_dict())
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert t.torch.equal(ours.weight, theirs.weight) and t.torch.equal(ours.bias, theirs.bias)


@differs("in place; parameters and state dict stay")
def in_place(t):
    layer, parameters, keys = t.model[0], list(t.model.parameters()), list(t.model.state_dict())
    assert hopgemm.torch.override_model(t.model) is t.model
    assert t.model[0] is layer and type(layer) is hopgemm.torch.Linear
    assert all(p is q for p, q in zip(t.model.parameters(), parameters, strict=True))
    assert list(t.model.state_dict()) == keys


# ---- JAX ----


def jax_operands():
    import jax

    return {
        name: jax.numpy.asarray(integers(shape, seed), "bfloat16")
        for seed, (name, shape) in enumerate(SHAPES.items())
    }


def cuda_text(f, *args):
    import jax

    return jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def equinox_layer(operands):
    equinox, jax = pytest.importorskip("equinox"), pytest.importorskip("jax")
    layer = equinox.nn.Linear(64, 48, dtype=jax.numpy.bfloat16, key=jax.random.key(0))
    where = lambda layer: (layer.weight, layer.bias)
    return equinox.tree_at(where, layer, (operands["w"], operands["bias"]))


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
            return eval(line, {**names, "equinox_layer": equinox_layer(operands)})(operands["a"])
        return eval(line, {**names, **operands})

    return run


def check_jax(was, now):
    import jax

    old, new = jax_function(was), jax_function(now)
    operands = jax_operands()
    want, got = (jax.jit(f)(operands) for f in (old, new))
    assert want.any() and got.dtype == want.dtype and got.shape == want.shape and (got == want).all()
    before, after = (cuda_text(f, operands) for f in (old, new))
    assert "hopgemm.matmul.v1" not in before and "dot_general" in before
    assert "hopgemm.matmul.v1" in after and "dot_general" not in after


@pytest.mark.parametrize(("was", "now"), pairs("JAX"))
def test_jax_row(was, now):
    check_jax(was, now)


@pytest.mark.gpu
@pytest.mark.parametrize(("was", "now"), pairs("JAX"))
def test_gpu_jax_row(was, now):
    check_jax(was, now)


@pytest.mark.parametrize("now", [now for _, now in pairs("JAX")])
def test_jax_gradients_and_vmap_stay_in_the_kernel(now):
    f, operands = jax_function(now), jax_operands()
    import jax

    loss = lambda operands: f(operands).astype("float32").sum()
    stacked = {name: jax.numpy.stack([x, x]) for name, x in operands.items()}
    for program in (cuda_text(jax.grad(loss), operands), cuda_text(jax.vmap(f), stacked)):
        assert "hopgemm.matmul.v1" in program and "dot_general" not in program


# ---- JAX: what differs ----

JAX_DIFFERENCES = {}


@pytest.mark.parametrize("sentence", differences("JAX"))
def test_jax_difference(sentence):
    jax = pytest.importorskip("jax")
    import hopgemm.jax  # noqa: F401

    JAX_DIFFERENCES[sentence](types.SimpleNamespace(jnp=jax.numpy, lax=jax.lax, **jax_operands()))


@differs("past 2 dimensions it is matmul's rule, not dot's", JAX_DIFFERENCES)
def rule_of_matmul(j):
    assert (hopgemm.matmul(j.a[0], j.b) == j.jnp.dot(j.a[0], j.b)).all()
    assert j.jnp.dot(j.x, j.y).shape == (3, 32, 3, 48)
    assert j.jnp.array_equal(hopgemm.matmul(j.x, j.y), j.jnp.matmul(j.x, j.y))


@differs("`w` is read as it lies; `hopgemm.matmul(a, w.T)` transposes it first", JAX_DIFFERENCES)
def nothing_is_transposed(j):
    in_place = lambda a, w: hopgemm.jax.dot_general(a, w, (((1,), (1,)), ((), ())))
    assert "stablehlo.transpose" not in cuda_text(in_place, j.a, j.w)
    assert "stablehlo.transpose" in cuda_text(lambda a, w: hopgemm.matmul(a, w.T), j.a, j.w)


@differs("one rounding instead of two", JAX_DIFFERENCES)
def one_rounding(j):
    ones, bias = j.jnp.ones((1, 257), "bfloat16"), j.jnp.full(1, -256, "bfloat16")
    assert j.jnp.matmul(ones, ones.T) + bias == 0  # 257 is no bfloat16
    assert hopgemm.matmul(ones, ones.T, bias=bias) == 1


@differs("dimensions by number, not by letter", JAX_DIFFERENCES)
def dimensions_by_number(j):
    with pytest.raises((TypeError, ValueError)):
        hopgemm.jax.dot_general(j.x, j.b, "bmk,kn->bmn")
    got = hopgemm.jax.dot_general(j.b, j.x, (((0,), (2,)), ((), ())))
    assert j.jnp.array_equal(got, j.jnp.einsum("kn,bmk->nbm", j.b, j.x))


@differs("what the kernel cannot do is XLA's", JAX_DIFFERENCES)
def the_rest_is_xlas(j):
    product = lambda a, b: hopgemm.jax.dot_general(a, b, (((1,), (0,)), ((), ())))
    for dtype, by in (("bfloat16", "kernel"), ("float32", "xla"), ("int32", "xla")):
        a, b = j.a.astype(dtype), j.b.astype(dtype)
        assert [done.by for done in hopgemm.jax.plan(product, a, b)] == [by]
        assert j.jnp.array_equal(product(a, b), j.jnp.matmul(a, b))


@differs("a new model, same leaves", JAX_DIFFERENCES)
def a_new_model(j):
    import jax

    old = equinox_layer(vars(j))
    new = hopgemm.jax.replace_linear(old)
    assert new is not old and isinstance(new, type(old))
    assert all(p is q for p, q in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True))


def test_every_difference_is_tested():
    for title, tested in (("PyTorch", TORCH_DIFFERENCES), ("JAX", JAX_DIFFERENCES)):
        assert differences(title) == sorted(tested)


# ---- how to undo ----


def back_to_torchs_class(row):
    torch = pytest.importorskip("torch")
    import hopgemm.torch  # noqa: F401

    t = types.SimpleNamespace(**torch_names("cpu"))
    want = t.model(t.a)
    assert is_ours(profiled(lambda: hopgemm.torch.override_model(t.model)(t.a))[1])
    for module in t.model:
        exec(row.undo.strip("`"), {"torch": torch, "module": module})
    got, names = profiled(lambda: t.model(t.a))
    assert torch.equal(got, want) and not is_ours(names)


def without_the_argument(row):
    assert row.now.replace(", dot_general=hopgemm.jax.dot_general", "") == row.was != row.now


def the_old_model(row):
    jax = pytest.importorskip("jax")
    import hopgemm.jax

    operands = jax_operands()
    old = equinox_layer(operands)
    new = hopgemm.jax.replace_linear(old)
    programs = [cuda_text(jax.vmap(model), operands["a"]) for model in (old, new)]
    assert ["hopgemm.matmul.v1" in program for program in programs] == [False, True]


UNDO = {
    "`module.__class__ = torch.nn.Linear`": back_to_torchs_class,
    "leave the argument out": without_the_argument,
    "keep the old model": the_old_model,
}
UNDONE = [row for title in ("PyTorch", "JAX") for row in rows(title) if row.undo != "the old line"]


@pytest.mark.parametrize("row", UNDONE, ids=lambda row: row.undo)
def test_undo(row):
    UNDO[row.undo](row)


def test_every_undo_is_tested():
    assert {row.undo for row in UNDONE} == set(UNDO)


# ---- what always differs ----

ALWAYS = {  # how each of its points begins: the tests of it
    "**Nothing is promoted.**": [
        "test_torch_refusals.py::test_type_errors_name_both",
        "test_jax_cpu.py::test_refusals",
        "test_torch_linear.py::test_the_rest_is_torchs_own",
        "torch_aten_checks.py::test_the_rest_is_left_to_torch",
        "jax_multi/check_dot_general.py::test_the_rest_is_xlas_and_plan_says_why",
        "test_torch_modes.py::test_autocast_follows_torch_matmul",
    ],
    "**One rounding.**": [
        "test_torch_matmul.py::test_one_rounding",
        "test_jax_cpu.py::test_rounded_once",
        "test_migrate.py::test_out_dtype_float32_gives_the_sums",
    ],
    "**The same bits on every run**": [
        "test_numerics_gpu.py::test_the_same_bits_every_time",
        "test_jax_gpu.py::test_a_step_of_several_calls_repeats_its_bits",
        "test_jax_gpu.py::test_torch_gives_the_same_bits",
    ],
    "The product's environment variables and `with` blocks": [
        "test_frontend_context.py::test_a_new_thread_starts_from_the_environment",
        "test_torch_modes.py::test_settings_become_arguments",
        "test_torch_modes.py::test_fallback_on_another_gpu",
        "jax_multi/check_context.py::test_one_function_outside_and_inside",
        "test_jax_cpu.py::test_unsupported_gpu",
    ],
}


def test_what_always_differs_is_tested():
    points = re.findall(r"^- (.*)", SECTIONS["What always differs"], re.MULTILINE)
    assert len(points) == len(ALWAYS)
    for point, (start, tests) in zip(points, ALWAYS.items()):
        assert point.startswith(start)
        for file, test in (name.split("::") for name in tests):
            assert f"\ndef {test}(" in (HERE / file).read_text(), f"{file}::{test}"


@pytest.mark.parametrize("framework", ["torch", "jax.numpy"])
def test_out_dtype_float32_gives_the_sums(framework):
    f = pytest.importorskip(framework)
    ones, bias = f.ones((1, 257), dtype=f.bfloat16), f.full((1,), -256, dtype=f.bfloat16)
    assert hopgemm.matmul(ones, ones.T) == 256 and f.matmul(ones, ones.T) + bias == 0  # 257 is no bfloat16
    assert hopgemm.matmul(ones, ones.T, out_dtype=f.float32) == 257
    assert hopgemm.matmul(ones, ones.T, bias=bias) == 1


# ---- the blocks of code ----


def test_the_page_was_read():
    assert len(rows("PyTorch")) >= 12 and len(rows("JAX")) >= 11
    kinds = collections.Counter(re.findall(r"^```(\S.*)$", TEXT, re.MULTILINE))
    assert kinds == {"python": 7, "python gpu": 2, "toml": 1}
    assert [title for title in SECTIONS if blocks(title) != blocks(title, gpu=True)] == [HUGGING_FACE, PLUGIN]


def import_or_skip(code):
    for packages in re.findall(r"^(?:import|from) (.+?)(?: import .*)?$", code, re.MULTILINE):
        for name in packages.split(","):
            pytest.importorskip(name.strip().partition(".")[0])


@pytest.mark.parametrize("block", [b for title in SECTIONS if title != HUGGING_FACE for b in blocks(title)])
def test_block(block):
    import_or_skip(block)
    exec(block, {})


def check_hugging_face(device):
    """The blocks in order; what they generate; and that it is what the model does without us."""
    code = "\n".join(blocks(HUGGING_FACE, gpu=device == "cuda"))
    import_or_skip(code)
    import torch

    torch.manual_seed(0)  # of weights that do not end the text at once, and with it the replays
    names = {}
    exec(code, names)
    model, prompt = names["model"], names["prompt"]
    again, ran = profiled(lambda: model.generate(prompt, max_new_tokens=8, do_sample=False))
    if device == "cuda":
        assert any("hopgemm::instances" in name for name in ran)
        assert any("GraphLaunch" in name for name in ran)
    else:
        assert is_ours(ran)

    plain = names["LlamaForCausalLM"](model.config).bfloat16().eval().to(device)
    plain.load_state_dict(model.state_dict())
    assert not any(isinstance(module, hopgemm.torch.Linear) for module in plain.modules())
    start = prompt.shape[1]
    assert names["tokens"].shape == (1, start + 8)
    for tokens in (names["tokens"], again):
        with torch.no_grad():
            logits = plain(tokens).logits[0, start - 1 : -1].float()
        # Not the same tokens: the best two of a model of random weights may be one rounding apart.
        chosen = logits.gather(1, tokens[0, start:, None])
        assert len(chosen) and (logits.amax(1, keepdim=True) - chosen).max() < logits.std() / 5


def test_hugging_face():
    check_hugging_face("cpu")


@pytest.mark.gpu
def test_gpu_hugging_face():
    pytest.importorskip("triton")
    check_hugging_face("cuda")


PLUGGED_IN = """
import sys, torch
from importlib.metadata import EntryPoint
from torch.profiler import profile

name, device = sys.argv[1:]
EntryPoint("hopgemm", name, "vllm.general_plugins").load()()
a = torch.ones(64, 64, device=device).bfloat16()
with profile() as seen:
    assert (torch.mm(a, a) == 64).all()
names = {event.name for event in seen.events()}
assert "aten::mm" in names and any("hopgemm::instances" in n for n in names) == (device == "cuda"), names
"""


def check_plugin(folder, device):
    """In a process of its own, which the override then holds for."""
    (block,) = blocks(PLUGIN, gpu=True)
    (folder / "my_plugin.py").write_text(block)
    (name,) = re.findall(r'"(my_plugin:\w+)"', SECTIONS[PLUGIN])
    command = [sys.executable, "-c", PLUGGED_IN, name, device]
    run = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)
    assert run.returncode == 0, run.stderr


def test_plugin(tmp_path):
    pytest.importorskip("torch")
    check_plugin(tmp_path, "cpu")


@pytest.mark.gpu
def test_gpu_plugin(tmp_path):
    pytest.importorskip("torch")
    check_plugin(tmp_path, "cuda")
