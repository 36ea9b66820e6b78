"""The Hopper matrix product that JAX ships, in Pallas: row-major A and B, tuned over a few tilings.

Timed on the host's clock over a whole program (see `hopgemm._bench_jax`), on PyTorch's operands in place.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs the memory too

import jax
from jax.experimental.pallas.ops.gpu.hopper_matmul_mgpu import MatmulDimension, TuningConfig, matmul

from hopgemm import _bench_protocols as protocols
from hopgemm._bench_jax import JaxContender
from hopgemm._shapes import Shape

# tile_m and tile_n of one of the two warpgroups, and the dimension along which they lie side by side.
_TILINGS = (
    (128, 128, MatmulDimension.N),
    (128, 128, MatmulDimension.M),
    (128, 64, MatmulDimension.N),
    (64, 128, MatmulDimension.N),
    (64, 64, MatmulDimension.N),
)
_TILE_K, _STEPS, _GROUP = 64, 4, 8
_MOST = 3  # compiling one takes seconds


def configs(shape: Shape) -> Iterator[TuningConfig]:
    """The tilings that divide the shape, which this kernel asks for."""
    m, n, k = shape
    for tile_m, tile_n, side_by_side in _TILINGS:
        cta_m = tile_m * (2 if side_by_side == MatmulDimension.M else 1)
        cta_n = tile_n * (2 if side_by_side == MatmulDimension.N else 1)
        if m % cta_m == 0 and n % cta_n == 0 and k % _TILE_K == 0:
            yield TuningConfig(
                tile_m,
                tile_n,
                _TILE_K,
                _STEPS,
                grid_minor_dim=MatmulDimension.M,
                grid_tile_width=_GROUP,
                wg_dimension=side_by_side,
            )


def product(config: TuningConfig) -> Any:
    """Two arrays -> their product; jitted, so that a program that calls it often holds it once."""
    return jax.jit(functools.partial(matmul, c=None, config=config))


def contender(case: Any) -> Any:
    """See `peers`. ValueError for other layouts, and for shapes that no tiling divides."""
    if case.layout != "kn":
        raise ValueError(f"layout {case.layout}: JAX's kernel takes row-major A and B, layout kn")
    a, b = case.sets[0][0]
    possible = list(configs((a.shape[0], b.shape[1], a.shape[1])))[:_MOST]
    if not possible:
        raise ValueError(f"{tuple(a.shape)} @ {tuple(b.shape)}: no tiling divides it")
    sets = [tuple(map(jax.dlpack.from_dlpack, step[0])) for step in case.sets]
    found = [_contender(config, sets, case.dtype) for config in possible]
    return min(found, key=protocols.estimate)


def _contender(config: TuningConfig, sets: list[Any], dtype: str) -> JaxContender:
    side = config.wg_dimension.name
    name = f"{config.tile_m}x{config.tile_n}x{config.tile_k} steps {config.max_concurrent_steps} along {side}"
    return JaxContender("pallas", name, product(config), sets, dtype, "kn")
