"""docs/refusals.md is what the code says today, with every refusal of the front end; its ways lead out."""

import ast
import importlib.util
import math
import pathlib
import re

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

# What a call gives after the way out, where that is not (32, 48).
SHAPES = {
    "scalar * b": (64, 48),
    "matmul(a, a.mT)": (32, 32),
    "matmul(bias, b.mT)": (64,),
    "matmul(batch_of_3[:, None], batch_of_2)": (3, 2, 32, 48),
    "matmul(batch_of_7_dimensions.flatten(0, -3), b)": (2, 32, 48),
    "matmul(a, column, c=one_a_row, beta=1)": (32,),
    "matmul(square, square, out=square.clone())": (16, 16),
    "matmul(square, square, c=square_c.clone(), beta=1, out=square_c_from_its_second_row)": (16, 16),
    "matmul(a, column, c=one_a_row[:, None].reshape(32), beta=1)": (32,),
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


def test_every_refusal_has_its_four_parts(rows):
    for row in rows:
        assert row.found and row.rule and row.way_out, row
        assert any(re.search(rf"\b{re.escape(name)}\b", row.found) for name in row.argument.split(", ")), row


@pytest.mark.parametrize(
    "message",
    [
        "hopgemm.matmul: c is a float; it must be a torch.Tensor or None",
        "hopgemm.matmul: beta is 1 but c is None. Pass c, or beta=0",
        "c is a float; it must be a torch.Tensor or None. Leave it out",
    ],
)
def test_a_message_that_lacks_a_part_is_noticed(generator, message):
    with pytest.raises(ValueError, match="not of the form"):
        generator.parts(message)


def test_both_frameworks_refuse_with_the_same_type(generator, rows):
    errors = {(row.call, row.framework): row.error for row in rows}
    for _, call, _ in generator.BOTH:
        assert errors[call, "PyTorch"] == errors[call, "JAX"], call


def test_what_knows_no_framework_says_the_same_in_both(generator, rows):
    for row in rows:
        if row.framework == "both":
            found = generator.refusal(row.argument, row.call, "JAX")
            assert found == row._replace(framework="JAX")


def test_the_ways_lead_out(generator):
    for call, framework in generator.ways_out():
        result = eval(call, generator.names_of(framework))
        if hasattr(result, "shape"):
            assert tuple(result.shape) == SHAPES.get(call, (32, 48)), (call, framework)
            assert math.isfinite(abs(result).max().item()), (call, framework)
        else:  # settings and plans
            assert call.startswith(
                ("hopgemm.plan(", "hopgemm.sm_limit(", "hopgemm.batch_", "hopgemm.fallback(")
            )


@pytest.mark.parametrize("framework", ["PyTorch", "JAX"])
def test_a_cpu_does_not_look_for_a_config(generator, framework):
    names = generator.names_of(framework)
    got, want = eval('matmul(a, b, config="nonsense"), matmul(a, b)', names)
    assert got.tolist() == want.tolist()


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
