"""Writes docs/refusals.md: what hopgemm's functions refuse, in their own words.

    python docs/generate_refusals.py

Every row is a call that is made here, on the CPU, and the error that came back. tests/python/test_refusals.py
holds that the page is what the code says, and that no `raise` of the front end is missing from it.
"""

from __future__ import annotations

import pathlib
import traceback
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

import hopgemm.jax
import hopgemm.torch

PAGE = pathlib.Path(__file__).with_name("refusals.md")
HEAD = """# What is refused

A wrong argument is an exception at the call: the argument, what was found, the rule and the way out. This
page is written by `docs/generate_refusals.py`, which makes each call and notes what comes back.

In the calls `a` is (32, 64), `b` (64, 48), `c` (32, 48) and `bias` (48,), all bfloat16; `matmul` is
`hopgemm.matmul`, `face` is `hopgemm.torch` or `hopgemm.jax`, and the other names say what they are.
`hopgemm.torch.linear`, `Linear` and `override` and `hopgemm.jax.dot_general` refuse no operands of their own
(but for `main_grad`): what the kernel does not take is the framework's, with the framework's errors.

Not shown, as no call on a CPU alone shows it: a GPU that is no Hopper, or a driver older than 580, is a
RuntimeError that says what was found and that `fallback=True` is the way out; a variable `HOPGEMM_...` with a
wrong value is a ValueError at the first call, with its name.

| argument | call | in | refused with |
|---|---|---|---|
"""

# Calls that mean the same in both frameworks.
BOTH = [
    ("a", "matmul([[1.0]], b)"),
    ("a", "matmul(numpy_array, b)"),
    ("a", "matmul(other_framework, b)"),
    ("a", "face.matmul(numpy_array, b)"),
    ("a", "matmul(float32_a, float32_b)"),
    ("b", "matmul(a, float16_b)"),
    ("a", "matmul(scalar, b)"),
    ("a, b", "matmul(a, a)"),
    ("a, b", "matmul(vector, b)"),
    ("a, b", "matmul(batch_of_3, batch_of_2)"),
    ("alpha", 'matmul(a, b, alpha="2")'),
    ("alpha", "matmul(a, b, alpha=1e300)"),
    ("beta", "matmul(a, b, c=c, beta=1e-50)"),
    ("bias", "matmul(a, b, bias=[1.0])"),
    ("bias", "matmul(a, b, bias=vector)"),
    ("bias", "matmul(a, b, bias=a)"),
    ("bias", "matmul(a, b, bias=float16_bias)"),
    ("bias", "matmul(a, column, bias=bias)"),
    ("c", "matmul(a, b, c=1.0, beta=1)"),
    ("c", "matmul(a, b, c=a, beta=1)"),
    ("c", "matmul(a, b, c=float16_c, beta=1)"),
    ("c", "matmul(a, column, c=c, beta=1)"),
    ("alpha", "matmul(a, b, alpha=None)"),
    ("beta", "matmul(a, b, c=c, beta=vector)"),
    ("beta", "matmul(a, b, beta=1)"),
    ("out_dtype", "matmul(a, b, out_dtype=float16)"),
    ("batch_invariant", 'matmul(a, b, batch_invariant="0")'),
    ("fallback", "matmul(a, b, fallback=1)"),
    ("sm_limit", "matmul(a, b, sm_limit=1.5)"),
    ("sm_limit", "matmul(a, b, sm_limit=-1)"),
    ("config", "matmul(a, b, config=3)"),
]
ONE = {
    "PyTorch": [
        ("a", "matmul(sparse_a, b)"),
        ("a, b", "matmul(batch_of_7_dimensions, b)"),
        ("b", "matmul(a, meta_b)"),
        ("out", "matmul(a, b, out=1)"),
        ("out", "matmul(a, b, out=a)"),
        ("out", "matmul(a, b, out=c, out_dtype=float32)"),
        ("out", "matmul(a, b, out=meta_c)"),
        ("out", "matmul(a, b, out=one_row_repeated)"),
        ("out", "matmul(square, square, out=square)"),
        ("out", "matmul(square, square, c=square_c, beta=1, out=square_c_from_its_second_row)"),
        ("out", "matmul(a_that_requires_grad, b, out=c)"),
        ("out_sharding", "hopgemm.matmul(a, b, out_sharding=1)"),
        ("m", "hopgemm.torch.override_model(a)"),
        ("batch_invariant", "hopgemm.torch.override(batch_invariant=1)"),
        ("sm_limit", "hopgemm.torch.override(sm_limit=-1)"),
        ("weight.main_grad", "hopgemm.torch.linear(a, weight_with(main_grad=1.0))"),
        ("weight.main_grad", "hopgemm.torch.linear(a, weight_with(main_grad=w))"),
        ("weight.main_grad", "hopgemm.torch.linear(a, weight_with(main_grad=float32_b))"),
        ("x", "hopgemm.torch.linear(float32_a, weight_with(main_grad=float32_w))"),
        ("weight", "hopgemm.torch.linear(a, computed_weight)"),
        ("weight", "torch.autograd.grad(hopgemm.torch.linear(a, weight).sum(), weight)"),
    ],
    "JAX": [
        ("a", 'matmul(jax.ShapeDtypeStruct((32, 64), "bfloat16"), b)'),
        ("alpha", "jax.jit(lambda s: matmul(a, b, alpha=s))(2.0)"),
        ("out", "matmul(a, b, out=c)"),
    ],
    "both": [
        ("n", "hopgemm.sm_limit(-1)"),
        ("n", 'hopgemm.sm_limit("8")'),
        ("on", "hopgemm.batch_invariant(1)"),
        ("on", "hopgemm.fallback(print)"),
        ("a, b", "hopgemm.plan(a, float16_b)"),
        ("a, b", "hopgemm.plan(a, a)"),
        ("a, b", "hopgemm.plan(batch_of_3, batch_of_2)"),
        ("a, b", "hopgemm.plan(a)"),
        ("a", "hopgemm.plan(scalar, b)"),
        ("a", "hopgemm.plan([1.0], b)"),
        ("out", "hopgemm.plan(a, b, out=a)"),
        ("m", "hopgemm.plan(n=8, k=8)"),
        ("m", "hopgemm.plan(m=-1, n=8, k=8)"),
        ("majors", 'hopgemm.plan(m=8, n=8, k=8, majors="nt")'),
        ("dtype", 'hopgemm.plan(m=8, n=8, k=8, dtype="float64")'),
        ("config", 'hopgemm.plan(m=8, n=8, k=8, config="fast")'),
    ],
}


class Refusal(NamedTuple):
    """One call and what came back; `where` is the file and line of the innermost frame in hopgemm."""

    argument: str
    call: str
    framework: str
    error: str
    message: str
    where: tuple[str, int]


def names_of(framework: str) -> dict[str, Any]:
    """What a call may name, as tensors of "PyTorch" or arrays of "JAX"."""
    shapes: dict[str, tuple[int, ...]] = {
        "a": (32, 64),
        "b": (64, 48),
        "c": (32, 48),
        "w": (48, 64),
        "bias": (48,),
        "vector": (3,),
        "column": (64,),
        "scalar": (),
        "batch_of_3": (3, 32, 64),
        "batch_of_2": (2, 64, 48),
    }
    tensors = {name: torch.ones(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    tensors |= {f"float32_{name}": tensors[name].float() for name in ("a", "b", "w")}
    tensors |= {f"float16_{name}": tensors[name].half() for name in ("b", "c", "bias")}
    arrays = {
        name: jax.numpy.ones(t.shape, str(t.dtype).removeprefix("torch.")) for name, t in tensors.items()
    }
    names = {"hopgemm": hopgemm, "matmul": hopgemm.matmul, "jax": jax, "numpy_array": np.ones((32, 64))}
    if framework == "JAX":
        dtypes = {"float16": jax.numpy.float16, "float32": jax.numpy.float32}
        return {**names, **arrays, **dtypes, "face": hopgemm.jax, "other_framework": tensors["a"]}
    square_c = torch.ones(17, 16, dtype=torch.bfloat16)

    def weight_with(main_grad: Any) -> torch.nn.Parameter:
        weight = torch.nn.Parameter(tensors["w"].clone())
        weight.main_grad = main_grad
        return weight

    computed_weight = weight_with(None) * 1
    computed_weight.main_grad = tensors["float32_w"]
    return {
        **names,
        **tensors,
        "face": hopgemm.torch,
        "other_framework": arrays["a"],
        "float16": torch.float16,
        "float32": torch.float32,
        "sparse_a": tensors["a"].to_sparse(),
        "batch_of_7_dimensions": torch.ones(1, 1, 1, 1, 1, 1, 2, 32, 64, dtype=torch.bfloat16),
        "meta_b": tensors["b"].to("meta"),
        "meta_c": tensors["c"].to("meta"),
        "one_row_repeated": torch.ones(1, 48, dtype=torch.bfloat16).expand(32, 48),
        "square": torch.ones(16, 16, dtype=torch.bfloat16),
        "square_c": square_c[:16],
        "square_c_from_its_second_row": square_c[1:],
        "a_that_requires_grad": tensors["a"].clone().requires_grad_(),
        "torch": torch,
        "weight_with": weight_with,
        "weight": weight_with(tensors["float32_w"]),
        "computed_weight": computed_weight,
    }


def refusal(argument: str, call: str, framework: str) -> Refusal:
    """Makes the call. RuntimeError if nothing was refused: then the row is wrong."""
    try:
        eval(call, names_of(framework))
    except (TypeError, ValueError, RuntimeError) as error:
        package = str(pathlib.Path(hopgemm.__file__).parent)
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(package)]
        message = str(error).partition("\n")[0]  # JAX adds a note on its own frames
        where = (pathlib.Path(frames[-1].filename).name, frames[-1].lineno or 0)
        return Refusal(argument, call, framework, type(error).__name__, message, where)
    raise RuntimeError(f"{call} with {framework}: nothing was refused")


def refusals() -> list[Refusal]:
    """Every row, in the order of the page."""
    cases = [(argument, call, name) for argument, call in BOTH for name in ("PyTorch", "JAX")]
    cases += [(argument, call, name) for name, calls in ONE.items() for argument, call in calls]
    return [refusal(*case) for case in cases]


def page(rows: list[Refusal]) -> str:
    """The text of docs/refusals.md."""
    lines = [
        f"| `{r.argument}` | `{r.call}` | {r.framework} | {r.error}: {r.message} |".replace("\n", " ")
        for r in rows
    ]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(refusals()))
