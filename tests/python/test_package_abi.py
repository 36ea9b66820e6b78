"""The contracts between the binaries: XLA's FFI version, the handler, the instances."""

import ast
from pathlib import Path

from hopgemm import _core


def test_ffi_version():
    """HAZARD: a handler built with newer headers than the oldest supported jax breaks that jax entirely."""
    assert tuple(_core.XLA_FFI_API) == (0, 3)


def test_handler_is_a_capsule():
    handlers = _core.xla_handlers()
    assert set(handlers) == {"hopgemm.matmul.v1"}
    assert type(handlers["hopgemm.matmul.v1"]).__name__ == "PyCapsule"


def test_build_facts():
    assert _core.compiler.startswith("nvcc 13.")
    assert _core.commit


def test_config_names_are_unique():
    names = _core.configs()
    assert names and len(set(names)) == len(names)


def test_stub_names_what_is_there():
    (stub,) = Path(_core.__file__).parent.glob("_core.pyi")
    nodes = ast.parse(stub.read_text()).body
    named = {n.name for n in nodes if isinstance(n, ast.FunctionDef)}
    named |= {n.target.id for n in nodes if isinstance(n, ast.AnnAssign)}
    assert named == {name for name in dir(_core) if not name.startswith("_")}
