"""docs/refusals.md is what the code says today, and shows every refusal of the front end."""

import ast
import importlib.util
import pathlib

import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

import hopgemm  # noqa: E402

DOCS = pathlib.Path(__file__).parents[2] / "docs"
PACKAGE = pathlib.Path(hopgemm.__file__).parent
FRONT_END = ("_context.py", "_dispatch.py", "_plan.py", "torch.py", "jax.py", "_torch_*.py", "_jax_*.py")

# Functions whose refusals no call on a CPU alone shows, and what they are about.
ELSEWHERE = {
    "parse_environment": "the environment's variables",
    "__call__": "decorating a generator or coroutine function; a scalar layer of Equinox",
    "_jax_matmul": "jax imported inside a block of settings",
    "_runs": "a GPU that is no Hopper, an old driver",
    "_ours": "the same, for hopgemm.jax.plan",
    "_kernel_runs_on": "becomes a warning",
    "_refuse_dtensor": "a DTensor, which needs a process group",
    "_explain": "a device that is neither CPU nor CUDA",
    "_gemm": "the operator torch.ops.hopgemm.gemm called directly",
    "check_linear": "within linear's short cut, which then gives way to the long one and its words",
    "_load": "a build that does not fit the installed torch",
    "_check": "a build that does not fit the installed torch",
    "register": "a jaxlib older than the build",
    "_target": "a wrong hopgemm.jax.target",
    "replace_linear": "needs Equinox",
    "linear_into_main_grad": "main_grad under torch.compile",
}


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("generate_refusals", DOCS / "generate_refusals.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows(generator):
    return generator.refusals()


def raises(path):
    """(function, first line, last line) of each raise statement that makes an exception."""

    def visit(node, function):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Raise) and child.exc is not None:
                yield function, child.lineno, child.end_lineno
            is_function = isinstance(child, ast.FunctionDef)
            yield from visit(child, child.name if is_function else function)

    return visit(ast.parse(path.read_text()), "")


def test_the_page_is_up_to_date(generator, rows):
    assert (DOCS / "refusals.md").read_text() == generator.page(rows), "run: python docs/generate_refusals.py"


def test_every_refusal_says_what_it_is_about(rows):
    for row in rows:
        assert row.message.startswith("hopgemm"), row
        assert any(name in row.message for name in row.argument.split(", ")), row


def test_both_frameworks_refuse_with_the_same_type(generator, rows):
    errors = {(row.call, row.framework): row.error for row in rows}
    for _, call in generator.BOTH:
        assert errors[call, "PyTorch"] == errors[call, "JAX"], call


def test_no_refusal_is_missing(rows):
    reached = {row.where for row in rows}
    paths = {path for pattern in FRONT_END for path in PACKAGE.glob(pattern)}
    missing = [
        f"{path.name}:{first} in {function}"
        for path in sorted(paths)
        for function, first, last in raises(path)
        if function not in ELSEWHERE
        and not any((path.name, line) in reached for line in range(first, last + 1))
    ]
    assert not missing
    functions = {function for path in paths for function, _, _ in raises(path)}
    assert functions >= ELSEWHERE.keys()  # none is left over
