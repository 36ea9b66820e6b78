"""Host time of one call, hopgemm.matmul beside torch.mm and Linear beside nn.Linear, in microseconds.

    python benchmarks/host_time.py [--json FILE]

The product is small, so that the GPU never makes the host wait; each figure is the median over rounds of the
mean over a loop of calls, the contenders in turn, the queue drained before each loop.
"""

import argparse
import functools
import json
import statistics
import time

import torch

import hopgemm
import hopgemm.torch

CALLS, ROUNDS = 200, 25


def loop_us(call):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    elapsed = time.perf_counter() - start
    torch.cuda.synchronize()
    return elapsed / CALLS * 1e6


def cases():
    """name -> (torch's call, ours, a context to run both in)"""
    a, b = (torch.randn(128, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    x, y = (torch.randn(4, 128, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    bias = torch.randn(128, device="cuda", dtype=torch.bfloat16)
    leaf = a.clone().requires_grad_()
    weight = b.clone().requires_grad_()
    ones = torch.ones_like(a)

    def step(product):
        leaf.grad = weight.grad = None
        product(leaf, weight).backward(ones)

    mm, ours = torch.mm, hopgemm.matmul
    return {
        "inference_mode": (lambda: mm(a, b), lambda: ours(a, b), torch.inference_mode),
        "no_grad": (lambda: mm(a, b), lambda: ours(a, b), torch.no_grad),
        "no operand requires grad": (lambda: mm(a, b), lambda: ours(a, b), torch.enable_grad),
        "out=": (lambda: mm(a, b, out=out), lambda: ours(a, b, out=out), torch.no_grad),
        "batched": (lambda: torch.bmm(x, y), lambda: ours(x, y), torch.no_grad),
        "bias": (lambda: torch.addmm(bias, a, b), lambda: ours(a, b, bias=bias), torch.no_grad),
        "requires_grad forward": (lambda: mm(leaf, weight), lambda: ours(leaf, weight), torch.enable_grad),
        "forward and backward": (lambda: step(mm), lambda: step(ours), torch.enable_grad),
    }


def linear_cases():
    """As cases(): layers with float32 parameters under autocast, as in training, and with bfloat16 ones."""
    rows = {}
    for bias, dtype, x_dtype in (
        (True, torch.float32, torch.float32),  # behind a LayerNorm
        (True, torch.float32, torch.bfloat16),  # behind a product
        (False, torch.float32, torch.float32),
        (True, torch.bfloat16, torch.bfloat16),
        (False, torch.bfloat16, torch.bfloat16),
    ):
        x = torch.randn(2, 64, 128, device="cuda", dtype=x_dtype, requires_grad=True)
        ones = torch.ones(2, 64, 128, device="cuda", dtype=torch.bfloat16)
        layers = [
            kind(128, 128, bias=bias, device="cuda", dtype=dtype)
            for kind in (torch.nn.Linear, hopgemm.torch.Linear)
        ]

        def forward(layer, x=x, enabled=dtype == torch.float32):
            # A region a call, so that no cast is reused.
            with torch.autocast("cuda", torch.bfloat16, enabled=enabled):
                return layer(x)

        def step(layer, x=x, ones=ones, forward=forward):
            for t in (x, *layer.parameters()):
                t.grad = None
            forward(layer).backward(ones)

        name = f"Linear {'bias ' * bias}{str(dtype)[6:]}, x {str(x_dtype)[6:]}"
        for kind, context, call in (
            ("no_grad", torch.no_grad, forward),
            ("forward", torch.enable_grad, forward),
            ("and backward", torch.enable_grad, step),
        ):
            rows[f"{name}: {kind}"] = (*(functools.partial(call, layer) for layer in layers), context)
    return rows


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="FILE")
    path = parser.parse_args().json
    records = []
    for name, (theirs, ours, context) in (cases() | linear_cases()).items():
        with context():
            loop_us(theirs), loop_us(ours)
            rounds = [(loop_us(theirs), loop_us(ours)) for _ in range(ROUNDS)]
        torch_us, hopgemm_us = map(statistics.median, zip(*rounds))
        records.append({"case": name, "torch_us": torch_us, "hopgemm_us": hopgemm_us})
        print(
            f"{name:48s} torch {torch_us:6.1f}  hopgemm {hopgemm_us:6.1f}"
            f"  difference {hopgemm_us - torch_us:+6.1f} us",
            flush=True,
        )
    if path:
        header = {
            "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name(),
            "commit": hopgemm._core.commit,
        }
        with open(path, "w") as file:
            json.dump({"header": header, "records": records}, file, indent=1)


if __name__ == "__main__":
    main()
