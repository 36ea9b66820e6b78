"""hopgemm.matmul's choice of framework, and what it refuses."""

import os
import subprocess
import sys
import types

import pytest

import hopgemm
from hopgemm import _dispatch


class FakeTensor:
    """Stands for torch.Tensor."""

    shape, dtype = (2, 3), "torch.bfloat16"


class FakeParameter(FakeTensor):
    """Stands for a subclass."""


class FakeArray:
    """Stands for jax.Array."""

    shape, dtype = (3, 4), "bfloat16"


@pytest.fixture
def frameworks(monkeypatch):
    """Modules that look like both frameworks and both faces; gives the list of calls."""
    calls = []

    def face(name):
        def matmul(a, b, **options):
            calls.append((name, a, b, options))
            return name

        return types.SimpleNamespace(matmul=matmul)

    compiler = types.SimpleNamespace(is_compiling=lambda: False)
    nn = types.SimpleNamespace(Parameter=FakeParameter)
    jax_core = types.SimpleNamespace(Tracer=type("Tracer", (), {}))
    modules = {
        "torch": types.SimpleNamespace(Tensor=FakeTensor, nn=nn, compiler=compiler),
        "jax": types.SimpleNamespace(Array=FakeArray, core=jax_core),
        "hopgemm.torch": face("torch"),
        "hopgemm.jax": face("jax"),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in (
        "torch",
        "jax",
    ):  # in the dict: setattr would ask the lazy attribute, and so keep the fake for good
        monkeypatch.setitem(vars(hopgemm), name, modules[f"hopgemm.{name}"])
    monkeypatch.setattr(_dispatch, "_faces", {})
    return calls


@pytest.mark.parametrize(
    ("a", "b", "name"),
    [
        (FakeTensor(), FakeTensor(), "torch"),
        (FakeParameter(), FakeTensor(), "torch"),
        (FakeTensor(), type("Sub", (FakeTensor,), {})(), "torch"),
        (FakeArray(), FakeArray(), "jax"),
        (type("Traced", (FakeArray,), {})(), FakeArray(), "jax"),
    ],
)
def test_both_operands_choose(frameworks, a, b, name):
    for _ in range(2):  # the second may take the short way
        assert hopgemm.matmul(a, b) == name
    assert [call[:3] for call in frameworks] == [(name, a, b)] * 2


def test_options_arrive(frameworks):
    options = {
        "bias": 1,
        "c": 2,
        "alpha": 3.0,
        "beta": 4.0,
        "out": 5,
        "out_dtype": 6,
        "batch_invariant": True,
        "fallback": False,
        "sm_limit": 9,
        "config": "name",
    }
    hopgemm.matmul(FakeTensor(), FakeTensor(), **options)
    hopgemm.matmul(FakeArray(), FakeArray())
    assert frameworks[0][3] == options
    assert frameworks[1][3] == {**dict.fromkeys(options), "alpha": 1.0, "beta": 0.0}


def test_unknown_option_is_refused(frameworks):
    with pytest.raises(TypeError, match="transpose_b"):
        hopgemm.matmul(FakeTensor(), FakeTensor(), transpose_b=True)


def test_the_short_way_does_not_mix(frameworks):
    hopgemm.matmul(FakeTensor(), FakeTensor())
    for a, b in ((FakeTensor(), FakeArray()), (FakeArray(), FakeTensor())):
        with pytest.raises(TypeError, match=r"a is a .*\(bfloat16 .*b is a .*from_dlpack"):
            hopgemm.matmul(a, b)
    assert len(frameworks) == 1


@pytest.mark.parametrize(
    ("operand", "found", "way"),
    [
        ([[1.0]], "of type list", r"torch\.tensor or jax\.numpy\.array"),
        (2.0, "of type float", r"torch\.tensor or jax\.numpy\.array"),
        (None, "of type NoneType", r"torch\.tensor"),
        (types.SimpleNamespace(), r"of type types\.SimpleNamespace", r"torch\.Tensor or a jax\.Array"),
    ],
)
def test_others_are_refused_with_the_way_out(frameworks, operand, found, way):
    for a, b, name in ((operand, FakeTensor(), "a"), (FakeTensor(), operand, "b"), (operand, operand, "a")):
        with pytest.raises(TypeError, match=f"{name} is {found}.*{way}"):
            hopgemm.matmul(a, b)
    assert frameworks == []


def test_numpy_is_refused_with_the_way_out(frameworks):
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match=r"numpy\.ndarray \(float32 \(2, 3\)\).*torch\.from_numpy"):
        hopgemm.matmul(numpy.ones((2, 3), "float32"), FakeTensor())


def test_without_any_framework():
    code = (
        "import sys, hopgemm\n"
        "try: hopgemm.matmul([1], [2])\n"
        "except TypeError as e: assert 'of type list' in str(e), e\n"
        "else: raise SystemExit('no TypeError')\n"
        "assert not {'torch', 'jax', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_torch_types_find_their_face():
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Subclass(torch.Tensor):
        pass

    a = torch.ones(2, 2, dtype=torch.bfloat16)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(a)
    for x in (a, torch.nn.Parameter(a), a.as_subclass(Subclass), fake, a.to("meta")):
        assert _dispatch.framework_of(x) == "torch"


def test_jax_types_find_their_face():
    jax = pytest.importorskip("jax")
    seen = []
    a = jax.numpy.ones((2, 2), "bfloat16")
    jax.jit(lambda x: seen.append(_dispatch.framework_of(x)))(a)
    jax.vmap(lambda x: seen.append(_dispatch.framework_of(x)))(a)
    jax.grad(lambda x: (seen.append(_dispatch.framework_of(x)), x.sum())[1])(a)
    assert [*seen, _dispatch.framework_of(a)] == ["jax"] * 4


def test_a_shape_is_told_from_a_value():
    jax = pytest.importorskip("jax")
    shape = jax.ShapeDtypeStruct((2, 3), "bfloat16")
    with pytest.raises(TypeError, match=r"hopgemm\.plan"):
        hopgemm.matmul(shape, shape)


def test_one_graph_where_the_first_call_is_compiled():
    """In a fresh process: Dynamo meets the lazy import; it must neither break the graph nor compile twice."""
    pytest.importorskip("torch")
    code = (
        "import torch, hopgemm\n"
        "graphs = []\n"
        "backend = lambda module, inputs: graphs.append(1) or module.forward\n"
        "f = torch.compile(lambda a, b: hopgemm.matmul(a, b), fullgraph=True, backend=backend)\n"
        "a = torch.full((2, 2), 3, dtype=torch.bfloat16)\n"
        "assert f(a, a).tolist() == [[18, 18]] * 2 and f(a, a).tolist() == [[18, 18]] * 2\n"
        "assert len(graphs) == 1, graphs"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_jax_first_imported_in_a_block_is_noticed():
    """The trace began without the settings in jit's cache key: its program could be reused outside."""
    pytest.importorskip("jax")
    code = (
        "import hopgemm\n"
        "with hopgemm.sm_limit(4):\n"
        "    import jax\n"
        "    a = jax.numpy.ones((8, 8), 'bfloat16')\n"
        "    try: jax.jit(hopgemm.matmul)(a, a)\n"
        "    except RuntimeError as e: assert 'Import jax before' in str(e), e\n"
        "    else: raise SystemExit('no RuntimeError')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
