"""Writes docs/refusals.md: what hopgemm's functions refuse, in their own words.

    python docs/generate_refusals.py

Every row is a call that is made here, on the CPU, and the error that came back. tests/python/test_refusals.py
holds that the page is what the code says, that no `raise` of the front end is missing from it, and that the
ways out lead out.
"""

from __future__ import annotations

import pathlib
import re
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
page is written by `docs/generate_refusals.py`, which makes each call and takes the message apart: it reads
`hopgemm.matmul: <found>; <rule>. <way out>`.

In the calls `a` is (32, 64), `b` (64, 48), `c` (32, 48) and `bias` (48,), all bfloat16; `matmul` is
`hopgemm.matmul`, `face` is `hopgemm.torch` or `hopgemm.jax`, and the other names say what they are.
`hopgemm.torch.linear`, `Linear` and `override` and `hopgemm.jax.dot_general` refuse no operands of their own
(but for `main_grad`): what the kernel does not take is the framework's, with the framework's errors.

Not shown, as no call on a CPU alone shows it: a GPU that is no Hopper, or a driver older than 580, is a
RuntimeError that says what was found and that `fallback=True` is the way out; a variable `HOPGEMM_...` with a
wrong value is a ValueError at the first call, with its name.

`config="nonsense"`, a name that no kernel has, is a ValueError where a kernel would run: in PyTorch at a call
on a GPU, in JAX where a program is lowered for one, and in `hopgemm.plan` on any machine. On a CPU no kernel
runs, and neither framework looks for the name. A JAX program that another version of hopgemm compiled or
exported may name a config that this one lacks: then hopgemm chooses another, and says so once on stderr.

| argument | call | in | error | found | rule | way out |
|---|---|---|---|---|---|---|
"""

# (argument, call, the call after the way out) that mean the same in both frameworks. Two calls where the way
# out is PyTorch's or JAX's own.
BOTH: list[tuple[str, str, str | tuple[str, str]]] = [
    (
        "a",
        "matmul(list_of_a, b)",
        (
            "matmul(torch.tensor(list_of_a).bfloat16(), b)",
            'matmul(jax.numpy.array(list_of_a, "bfloat16"), b)',
        ),
    ),
    (
        "a",
        "matmul(numpy_a, b)",
        (
            "matmul(torch.from_numpy(numpy_a).bfloat16(), b)",
            'matmul(jax.numpy.asarray(numpy_a, "bfloat16"), b)',
        ),
    ),
    (
        "a",
        "matmul(other_framework, b)",
        (
            "matmul(torch.from_dlpack(other_framework), b)",
            "matmul(jax.dlpack.from_dlpack(other_framework), b)",
        ),
    ),
    (
        "a",
        "face.matmul(numpy_a, b)",
        (
            "face.matmul(torch.as_tensor(numpy_a, dtype=torch.bfloat16), b)",
            'face.matmul(jax.numpy.asarray(numpy_a, "bfloat16"), b)',
        ),
    ),
    (
        "a",
        "matmul(float32_a, float32_b)",
        (
            "matmul(float32_a.to(torch.bfloat16), float32_b.to(torch.bfloat16))",
            'matmul(float32_a.astype("bfloat16"), float32_b.astype("bfloat16"))',
        ),
    ),
    (
        "b",
        "matmul(a, float16_b)",
        ("matmul(a, float16_b.to(a.dtype))", "matmul(a, float16_b.astype(a.dtype))"),
    ),
    ("a", "matmul(scalar, b)", "scalar * b"),
    ("a, b", "matmul(a, a)", "matmul(a, a.mT)"),
    ("a, b", "matmul(bias, b)", "matmul(bias, b.mT)"),
    ("a, b", "matmul(batch_of_3, batch_of_2)", "matmul(batch_of_3[:, None], batch_of_2)"),
    ("alpha", 'matmul(a, b, alpha="2")', 'matmul(a, b, alpha=float("2"))'),
    ("alpha", "matmul(a, b, alpha=None)", "matmul(a, b)"),
    ("alpha", "matmul(tiny_a, b, alpha=1e39)", "matmul(1e30 * tiny_a, b, alpha=1e9)"),
    ("beta", "matmul(a, b, c=c, beta=1e-50)", "matmul(a, b, c=1e-50 * c, beta=1)"),
    ("beta", "matmul(a, b, c=c, beta=bias)", "matmul(a, b, c=bias * c, beta=1)"),
    ("beta", "matmul(a, b, beta=1)", "matmul(a, b, c=c, beta=1)"),
    (
        "bias",
        "matmul(a, b, bias=[1.0] * 48)",
        (
            "matmul(a, b, bias=torch.as_tensor([1.0] * 48, device=a.device))",
            "matmul(a, b, bias=jax.numpy.asarray([1.0] * 48))",
        ),
    ),
    ("bias", "matmul(a, b, bias=one_a_row)", "matmul(a, b, c=one_a_row[:, None], beta=1)"),
    ("bias", "matmul(a, b, bias=bias[None])", "matmul(a, b, bias=bias[None].reshape(-1))"),
    (
        "bias",
        "matmul(a, b, bias=float16_bias)",
        ("matmul(a, b, bias=float16_bias.to(a.dtype))", "matmul(a, b, bias=float16_bias.astype(a.dtype))"),
    ),
    ("bias", "matmul(a, column, bias=one_a_row)", "matmul(a, column, c=one_a_row, beta=1)"),
    (
        "c",
        "matmul(a, b, c=1.0, beta=1)",
        (
            "matmul(a, b, c=torch.as_tensor(1.0, device=a.device), beta=1)",
            "matmul(a, b, c=jax.numpy.asarray(1.0), beta=1)",
        ),
    ),
    ("c", "matmul(a, b, c=transposed_c, beta=1)", "matmul(a, b, c=transposed_c.mT, beta=1)"),
    (
        "c",
        "matmul(a, b, c=float16_c, beta=1)",
        (
            "matmul(a, b, c=float16_c.to(a.dtype), beta=1)",
            "matmul(a, b, c=float16_c.astype(a.dtype), beta=1)",
        ),
    ),
    (
        "c",
        "matmul(a, column, c=one_a_row[:, None], beta=1)",
        "matmul(a, column, c=one_a_row[:, None].reshape(32), beta=1)",
    ),
    (
        "out_dtype",
        "matmul(a, b, out_dtype=float16)",
        ("matmul(a, b).to(float16)", "matmul(a, b).astype(float16)"),
    ),
    ("batch_invariant", 'matmul(a, b, batch_invariant="0")', "matmul(a, b, batch_invariant=False)"),
    ("fallback", "matmul(a, b, fallback=1)", "matmul(a, b, fallback=True)"),
    ("sm_limit", "matmul(a, b, sm_limit=1.5)", "matmul(a, b, sm_limit=int(1.5))"),
    ("sm_limit", "matmul(a, b, sm_limit=-1)", "matmul(a, b, sm_limit=0)"),
    ("config", "matmul(a, b, config=3)", "matmul(a, b, config=hopgemm.plan(a, b).config)"),
]
# The same for one framework, or where both are one to the function; None: no call on a CPU shows the way out.
ONE: dict[str, list[tuple[str, str, str | None]]] = {
    "PyTorch": [
        ("a", "matmul(sparse_a, b)", "matmul(sparse_a.to_dense(), b)"),
        ("a", "matmul(nested_a, b)", "matmul(torch.nested.to_padded_tensor(nested_a, 0).flatten(0, 1), b)"),
        ("a, b", "matmul(batch_of_7_dimensions, b)", "matmul(batch_of_7_dimensions.flatten(0, -3), b)"),
        ("b", "matmul(a, meta_b)", None),
        ("out", "matmul(a, b, out=1)", "matmul(a, b, out=a.new_empty((32, 48)))"),
        ("out", "matmul(a, b, out=a)", "matmul(a, b, out=a.new_empty((32, 48)))"),
        ("out", "matmul(a, b, out=c, out_dtype=float32)", "matmul(a, b, out=c)"),
        ("out", "matmul(a, b, out=meta_c)", None),
        ("out", "matmul(a, b, out=negated_c)", "matmul(a, b, out=c)"),
        ("out", "matmul(a, b, out=one_row_repeated)", "matmul(a, b, out=one_row_repeated.clone())"),
        ("out", "matmul(square, square, out=square)", "matmul(square, square, out=square.clone())"),
        (
            "out",
            "matmul(square, square, c=square_c, beta=1, out=square_c_from_its_second_row)",
            "matmul(square, square, c=square_c.clone(), beta=1, out=square_c_from_its_second_row)",
        ),
        ("out", "matmul(a_that_requires_grad, b, out=c)", "matmul(a_that_requires_grad, b)"),
        ("out_sharding", "hopgemm.matmul(a, b, out_sharding=1)", "matmul(a, b)"),
        ("m", "hopgemm.torch.override_model(a)", "hopgemm.torch.linear(a, w)"),
        ("batch_invariant", "hopgemm.torch.override(batch_invariant=1)", None),
        ("sm_limit", "hopgemm.torch.override(sm_limit=-1)", None),
        (
            "weight.main_grad",
            "hopgemm.torch.linear(a, weight_with(main_grad=1.0))",
            "hopgemm.torch.linear(a, weight_with(main_grad=torch.zeros_like(w, dtype=torch.float32)))",
        ),
        (
            "weight.main_grad",
            "hopgemm.torch.linear(a, weight_with(main_grad=w))",
            "hopgemm.torch.linear(a, weight_with(main_grad=torch.zeros_like(w, dtype=torch.float32)))",
        ),
        (
            "weight.main_grad",
            "hopgemm.torch.linear(a, weight_with(main_grad=float32_b))",
            "hopgemm.torch.linear(a, weight_with(main_grad=torch.zeros_like(w, dtype=torch.float32)))",
        ),
        (
            "x",
            "hopgemm.torch.linear(float32_a, weight_with(main_grad=float32_w))",
            "hopgemm.torch.linear(float32_a.bfloat16(), weight_with(main_grad=float32_w))",
        ),
        ("weight", "hopgemm.torch.linear(a, computed_weight)", "hopgemm.torch.linear(a, w * 1)"),
        ("weight", "torch.autograd.grad(hopgemm.torch.linear(a, weight).sum(), weight)", None),
    ],
    "JAX": [
        ("a", 'matmul(jax.ShapeDtypeStruct((32, 64), "bfloat16"), b)', None),
        (
            "alpha",
            "jax.jit(lambda s: matmul(a, b, alpha=s))(2.0)",
            "jax.jit(lambda s: s * matmul(a, b))(2.0)",
        ),
        ("out", "matmul(a, b, out=c)", "matmul(a, b)"),
    ],
    "both": [
        ("n", "hopgemm.sm_limit(-1)", "hopgemm.sm_limit(0)"),
        ("n", 'hopgemm.sm_limit("8")', 'hopgemm.sm_limit(int("8"))'),
        ("on", "hopgemm.batch_invariant(1)", "hopgemm.batch_invariant(True)"),
        ("on", "hopgemm.fallback(print)", "hopgemm.fallback()(print)"),
        ("a, b", "hopgemm.plan(a, float16_b)", "hopgemm.plan(a, b)"),
        ("a, b", "hopgemm.plan(float32_a, float32_b)", "hopgemm.plan(a, b)"),
        ("a, b", "hopgemm.plan(a, a)", "hopgemm.plan(a, a.mT)"),
        ("a, b", "hopgemm.plan(batch_of_3, batch_of_2)", "hopgemm.plan(batch_of_3[:, None], batch_of_2)"),
        ("a", "hopgemm.plan(a)", "hopgemm.plan(a, b)"),
        ("a", "hopgemm.plan(scalar, b)", None),
        ("a", "hopgemm.plan([1.0], b)", "hopgemm.plan(m=1, n=48, k=64)"),
        ("out", "hopgemm.plan(a, b, out=a)", "hopgemm.plan(a, b, out=c)"),
        ("out_dtype", "hopgemm.plan(a, b, out_dtype=float16)", "hopgemm.plan(a, b)"),
        ("alpha", 'hopgemm.plan(a, b, alpha="2")', 'hopgemm.plan(a, b, alpha=float("2"))'),
        ("alpha", "hopgemm.plan(a, b, alpha=10**400)", "hopgemm.plan(a, b, alpha=1e30)"),
        (
            "batch_invariant",
            "hopgemm.plan(a, b, batch_invariant=1)",
            "hopgemm.plan(a, b, batch_invariant=True)",
        ),
        ("sm_limit", "hopgemm.plan(a, b, sm_limit=1.5)", "hopgemm.plan(a, b, sm_limit=int(1.5))"),
        ("sm_limit", "hopgemm.plan(a, b, sm_limit=-1)", "hopgemm.plan(a, b, sm_limit=0)"),
        ("config", "hopgemm.plan(a, b, config=3)", "hopgemm.plan(a, b, config=hopgemm.plan(a, b).config)"),
        (
            "config",
            'hopgemm.plan(a, b, config="nonsense")',
            "hopgemm.plan(a, b, config=hopgemm.plan(a, b).config)",
        ),
        ("m", "hopgemm.plan(n=8, k=8)", "hopgemm.plan(m=8, n=8, k=8)"),
        ("m", "hopgemm.plan(m=-1, n=8, k=8)", "hopgemm.plan(m=1, n=8, k=8)"),
        ("majors", 'hopgemm.plan(m=8, n=8, k=8, majors="nt")', 'hopgemm.plan(m=8, n=8, k=8, majors="kn")'),
        ("dtype", 'hopgemm.plan(m=8, n=8, k=8, dtype="float64")', "hopgemm.plan(m=8, n=8, k=8)"),
    ],
}

FORM = re.compile(r"hopgemm[\w.]*: (.+?); (.+?)\. (.+)")


class Refusal(NamedTuple):
    """One call and what came back; `where` is the file and line of the innermost frame in hopgemm."""

    argument: str
    call: str
    framework: str
    error: str
    found: str
    rule: str
    way_out: str
    where: tuple[str, int]


def names_of(framework: str) -> dict[str, Any]:
    """What a call may name, as tensors of "PyTorch" or arrays of "JAX"."""
    shapes: dict[str, tuple[int, ...]] = {
        "a": (32, 64),
        "b": (64, 48),
        "c": (32, 48),
        "w": (48, 64),
        "bias": (48,),
        "one_a_row": (32,),
        "column": (64,),
        "transposed_c": (48, 32),
        "scalar": (),
        "batch_of_3": (3, 32, 64),
        "batch_of_2": (2, 64, 48),
    }
    tensors = {name: torch.ones(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    tensors |= {f"float32_{name}": tensors[name].float() for name in ("a", "b", "w")}
    tensors |= {f"float16_{name}": tensors[name].half() for name in ("b", "c", "bias")}
    tensors["tiny_a"] = 1e-30 * tensors["a"]
    arrays = {
        name: jax.numpy.asarray(t.float().numpy(), str(t.dtype).removeprefix("torch."))
        for name, t in tensors.items()
    }
    numpy_a = np.ones((32, 64))
    names = {"hopgemm": hopgemm, "matmul": hopgemm.matmul, "jax": jax, "torch": torch}
    names |= {"numpy_a": numpy_a, "list_of_a": numpy_a.tolist()}
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
        "nested_a": torch.nested.nested_tensor(list(tensors["a"].split(16))),
        "negated_c": torch._neg_view(tensors["c"]),
        "batch_of_7_dimensions": torch.ones(1, 1, 1, 1, 1, 1, 2, 32, 64, dtype=torch.bfloat16),
        "meta_b": tensors["b"].to("meta"),
        "meta_c": tensors["c"].to("meta"),
        "one_row_repeated": torch.ones(1, 48, dtype=torch.bfloat16).expand(32, 48),
        "square": torch.ones(16, 16, dtype=torch.bfloat16),
        "square_c": square_c[:16],
        "square_c_from_its_second_row": square_c[1:],
        "a_that_requires_grad": tensors["a"].clone().requires_grad_(),
        "weight_with": weight_with,
        "weight": weight_with(tensors["float32_w"]),
        "computed_weight": computed_weight,
    }


def parts(message: str) -> tuple[str, ...]:
    """What was found, the rule and the way out. ValueError for a message that lacks one of them."""
    match = FORM.fullmatch(message)
    if match is None:
        raise ValueError(f"not of the form 'hopgemm.f: <found>; <rule>. <way out>': {message!r}")
    return match.groups()


def refusal(argument: str, call: str, framework: str) -> Refusal:
    """Makes the call. RuntimeError if nothing was refused: then the row is wrong."""
    try:
        eval(call, names_of(framework))
    except (TypeError, ValueError, RuntimeError) as error:
        package = str(pathlib.Path(hopgemm.__file__).parent)
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(package)]
        message = str(error).partition("\n")[0]  # JAX adds a note on its own frames
        where = (pathlib.Path(frames[-1].filename).name, frames[-1].lineno or 0)
        return Refusal(argument, call, framework, type(error).__name__, *parts(message), where)
    raise RuntimeError(f"{call} with {framework}: nothing was refused")


def refusals() -> list[Refusal]:
    """Every row, in the order of the page."""
    cases = [(argument, call, name) for argument, call, _ in BOTH for name in ("PyTorch", "JAX")]
    cases += [(argument, call, name) for name, calls in ONE.items() for argument, call, _ in calls]
    return [refusal(*case) for case in cases]


def ways_out() -> list[tuple[str, str]]:
    """(call, framework) after the way out of each row that a call on a CPU can show."""
    found = []
    for *_, after in BOTH:
        calls = (after, after) if isinstance(after, str) else after
        found += zip(calls, ("PyTorch", "JAX"), strict=True)
    for name, rows in ONE.items():
        found += [
            (after, side)
            for *_, after in rows
            if after
            for side in (("PyTorch", "JAX") if name == "both" else (name,))
        ]
    return found


def page(rows: list[Refusal]) -> str:
    """The text of docs/refusals.md."""
    lines = []
    for r in rows:
        cells = (f"`{r.argument}`", f"`{r.call}`", r.framework, r.error, r.found, r.rule, r.way_out)
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(refusals()))
