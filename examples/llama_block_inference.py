"""One layer of a Llama-like model under CUDA graphs: its time with cuBLAS and with hopgemm.

    python examples/llama_block_inference.py --json llama.json     on a Hopper GPU, half a minute
    python examples/llama_block_inference.py --small               a tiny layer, on the CPU too, with no graph

1, 16 and 128 tokens are decoding: as many sequences, one new token each. 2048 are the prefill of one
sequence. The layer has Llama 3 8B's sizes. hopgemm comes in by one line,
`hopgemm.torch.override_model(layer)`.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import hopgemm.torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclasses.dataclass(frozen=True)
class Size:
    """One layer."""

    width: int = 4096
    hidden: int = 14336
    heads: int = 32
    kv_heads: int = 8
    context: int = 1024  # tokens in the cache of each sequence that decodes


class Block(nn.Module):
    """Attention with grouped keys and values, and a gated feed-forward network; bfloat16, no biases."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size, self.dim = size, size.width // size.heads
        options: dict[str, Any] = {"bias": False, "dtype": torch.bfloat16, "device": DEVICE}
        self.norm1 = nn.RMSNorm(size.width, dtype=torch.bfloat16, device=DEVICE)
        self.norm2 = nn.RMSNorm(size.width, dtype=torch.bfloat16, device=DEVICE)
        self.qkv = nn.Linear(size.width, (size.heads + 2 * size.kv_heads) * self.dim, **options)
        self.proj = nn.Linear(size.width, size.width, **options)
        self.gate_up = nn.Linear(size.width, 2 * size.hidden, **options)
        self.down = nn.Linear(size.hidden, size.width, **options)

    def forward(self, x: torch.Tensor, cache: torch.Tensor | None) -> torch.Tensor:
        """x (sequences, tokens, width), cache (2, sequences, kv_heads, context, dim) or None: prefill."""
        size = self.size
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (-1, self.dim)).transpose(1, 2)
        q, k, v = qkv.split([size.heads, size.kv_heads, size.kv_heads], dim=1)
        if cache is not None:  # the new token takes the cache's last place
            cache[:, :, :, -1:] = torch.stack([k, v])
            k, v = cache
        y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None, enable_gqa=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def captured(run: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
    """`run` as a replay of one CUDA graph, and where its result lies; on the CPU `run` itself."""
    if DEVICE.type != "cuda":
        return run, run()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what a library does once must lie before the capture
        run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = run()
    return graph.replay, result


def microseconds(replay: Callable[[], object], calls: int) -> float:
    """Mean time of a call, over `calls` calls in a row."""
    if DEVICE.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / calls * 1e3
    began = time.perf_counter()
    for _ in range(calls):
        replay()
    return (time.perf_counter() - began) / calls * 1e6


@torch.inference_mode()
def measure(size: Size, tokens: int, rounds: int, calls: int) -> dict[str, Any]:
    """Times of a layer by who multiplies; they take turns. ValueError where the results differ."""
    torch.manual_seed(0)
    decodes = tokens <= 128
    plain = Block(size)
    ours = hopgemm.torch.override_model(copy.deepcopy(plain))
    layers = {"cublas": plain, "cublaslt": plain, "hopgemm": ours}
    x = torch.randn(tokens if decodes else 1, 1 if decodes else tokens, size.width, device=DEVICE).bfloat16()
    shape = (2, tokens, size.kv_heads, size.context, size.width // size.heads)
    cache = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) if decodes else None

    replays, results = {}, {}
    for name, layer in layers.items():
        if DEVICE.type == "cuda":  # hopgemm's turn is the last: it leaves torch as it was
            torch.backends.cuda.preferred_blas_library("default" if name == "hopgemm" else name)
        replays[name], results[name] = captured(lambda layer=layer: layer(x, cache))
        replays[name]()
    for name, result in results.items():
        torch.testing.assert_close(result, results["cublas"], rtol=0.05, atol=0.05)

    times: dict[str, list[float]] = {name: [] for name in layers}
    for _ in range(rounds):
        for name, replay in replays.items():
            replay()
            times[name].append(microseconds(replay, calls))
    medians = {name: statistics.median(values) for name, values in times.items()}
    fastest = min(medians["cublas"], medians["cublaslt"])
    return {"tokens": tokens, "us": medians, "ratio": medians["hopgemm"] / fastest}


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Measures, prints, and returns one record for each number of tokens."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a tiny layer, for a machine without a GPU")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the records here")
    options = parser.parse_args(argv)
    if DEVICE.type != "cuda" and not options.small:
        parser.error("no GPU here: add --small")
    size = Size(64, 224, 4, 2, 16) if options.small else Size()
    rounds, calls = (1, 1) if options.small else (7, 50)
    device = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU"
    print(
        f"{device}, torch {torch.__version__}, one layer, microseconds; ratio: to the faster of cuBLAS's two"
    )
    print(f"{'tokens':>7}{'cublas':>10}{'cublaslt':>10}{'hopgemm':>10}{'ratio':>8}")
    records = []
    for tokens in (1, 16, 128, 2048):
        record = measure(size, min(tokens, 256) if options.small else tokens, rounds, calls)
        print(f"{record['tokens']:>7}" + "".join(f"{us:>10.1f}" for us in record["us"].values()), end="")
        print(f"{record['ratio']:>8.3f}", flush=True)
        records.append(record)
    if options.json is not None:
        head = {"example": "llama_block_inference", "device": device, "torch": torch.__version__}
        text = json.dumps({**head, "size": vars(size), "layers": records}, indent=1)
        options.json.write_text(text + "\n")
    return records


if __name__ == "__main__":
    main()
