"""What there is to measure, one shape at a time, and about how long each takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hopgemm import _bench_protocols as protocols
from hopgemm._bench import protocol_of
from hopgemm._bench_case import TRAINING_LAYOUTS, products
from hopgemm._shapes import BIG_SQUARES, SUITES, Shape, format_shape

START_S = 12.0  # of a process: importing PyTorch, opening the GPU, the roofs
_OVERHEAD_S = 0.5  # of a shape: operands, graphs, checks, the probe of cuBLAS's backends
_PEER_SETUP_S = {"triton": 4.0, "pallas": 10.0, "quack": 60.0}  # of a shape: compiling and choosing


@dataclass(frozen=True)
class Job:
    """One shape in one layout by one protocol, never "auto"; peers: other libraries beside cuBLAS."""

    shape: Shape
    dtype: str
    layout: str
    protocol: str
    peers: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str, str]:
        """As records have it: shape, dtype, layout, protocol."""
        return format_shape(self.shape), self.dtype, self.layout, self.protocol

    @property
    def expected_s(self) -> float:
        """Seconds on a GPU, roughly."""
        contenders = 2 + len(self.peers)
        a_round = {
            "sustained": protocols.SUSTAINED_ROUNDS * (protocols.SETTLE_S + protocols.WINDOW_S),
            "burst": protocols.BURST_ROUNDS * protocols.REST_S,
            "single": protocols.SINGLE_ROUNDS * protocols.SAMPLE_S,
        }[self.protocol]
        if self.protocol == "sustained" and self.layout == "kk" and self.shape in BIG_SQUARES:
            a_round += protocols.ENERGY_WINDOW_S
        return contenders * a_round + _OVERHEAD_S + sum(_PEER_SETUP_S[name] for name in self.peers)


def of_training(layers: Iterable[Shape]) -> list[tuple[Shape, str]]:
    """The products of training steps of these layers, with either way to store a weight: shape, majors."""
    return [product for layer in layers for step in TRAINING_LAYOUTS for product in products(layer, step)]


_OF_TRAINING = frozenset(of_training(SUITES["training"]))


def is_sustained(shape: Shape, majors: str) -> bool:
    """Is this product compared sustained, by itself or within a training step?"""
    return (shape, majors) in _OF_TRAINING or protocol_of(shape, "auto") == "sustained"


def make_jobs(
    shapes: Iterable[Shape],
    dtypes: Sequence[str] = ("bf16",),
    layouts: Sequence[str] = ("kk",),
    protocol: str = "auto",
    peers: Sequence[str] = (),
) -> list[Job]:
    """Every shape in every layout and dtype; peers only on the shapes of the core suite."""
    jobs = []
    for shape in shapes:
        for layout in layouts:
            with_peers = shape in SUITES["core"] and layout not in TRAINING_LAYOUTS
            for dtype in dtypes:
                how = protocol_of(shape, protocol, layout)
                jobs.append(Job(shape, dtype, layout, how, tuple(peers) if with_peers else ()))
    return jobs


def total_s(jobs: Iterable[Job], gpus: int) -> float:
    """Seconds until all is measured on so many GPUs."""
    times = [job.expected_s for job in jobs]
    return START_S + max(sum(times) / gpus, max(times)) if times else 0.0


def in_order(groups: Sequence[Sequence[Job]], gpus: int, budget_s: float) -> list[Job]:
    """Each job once, the groups in their order. In a group the longest first, so that all GPUs end together;
    where not everything fits into the budget the shortest first, so that the most is measured."""
    fits = total_s({job for group in groups for job in group}, gpus) <= budget_s
    ordered = [job for group in groups for job in sorted(group, key=lambda j: j.expected_s, reverse=fits)]
    return list(dict.fromkeys(ordered))
