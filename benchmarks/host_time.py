"""Host time of one call, hopgemm.matmul beside torch.mm, in microseconds.

    python benchmarks/host_time.py [--json FILE]

The product is small, so that the GPU never makes the host wait; each figure is the median over rounds of the
mean over a loop of calls, the contenders in turn, the queue drained before each loop.
"""

import argparse
import json
import statistics
import time

import torch

import hopgemm

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


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="FILE")
    path = parser.parse_args().json
    records = []
    for name, (theirs, ours, context) in cases().items():
        with context():
            loop_us(theirs), loop_us(ours)
            rounds = [(loop_us(theirs), loop_us(ours)) for _ in range(ROUNDS)]
        torch_us, hopgemm_us = map(statistics.median, zip(*rounds))
        records.append({"case": name, "torch_us": torch_us, "hopgemm_us": hopgemm_us})
        print(
            f"{name:24s} torch {torch_us:6.1f}  hopgemm {hopgemm_us:6.1f}"
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
