"""A config's name, taken apart. `src/host/config_name.cc` writes names, and says which of them can run.

`bf16_kk_128x256x64_c2x1_s4_coop+m8+ctas128`: input type, contiguous dimensions of A and B, tile, cluster,
stages, arrangement, then the schedule.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_NAME = re.compile(
    r"(bf16|f16)_([km][kn])_(\d+)x(\d+)x(\d+)_c(\d)x(\d)_s(\d+)_(coop|pingpong|swap)((?:\+\w+)*)"
)


class ConfigName(NamedTuple):
    """Tile and cluster are the caller's way round, of swapped kernels too."""

    dtype: str
    majors: str
    tile_m: int
    tile_n: int
    tile_k: int
    cluster_m: int
    cluster_n: int
    stages: int
    arrangement: str
    schedule: str

    @property
    def tokens(self) -> list[str]:
        """Of the schedule: `["m8", "ctas128"]`."""
        return self.schedule.split("+")[1:]


def parse(name: str) -> ConfigName:
    """ValueError where this cannot be a config's name."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"config {name!r}: not a config's name")
    dtype, majors, *numbers, arrangement, schedule = found.groups()
    tile_m, tile_n, tile_k, cluster_m, cluster_n, stages = map(int, numbers)
    return ConfigName(
        dtype, majors, tile_m, tile_n, tile_k, cluster_m, cluster_n, stages, arrangement, schedule
    )
