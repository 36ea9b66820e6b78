"""`hopgemm trace`: what every role of every CTA does when, as a page or as JSON for Perfetto.

On a Hopper GPU by a traced build of the kernel, which there is for the kernels that `traced_configs()`
names; elsewhere, and for the others with `--model`, by a model of the machine on which the same role loops
run.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from . import _config_name, _tile_order, _trace_events, _trace_page
from ._trace_events import Timeline

_RECORDS = 8192  # a role; 16 bytes each


def traced_configs() -> list[str]:
    """Names of the kernels that can be traced on a GPU."""
    from . import _trace_core

    return list(_trace_core.traced_configs())


def trace(
    m: int, n: int, k: int, config: str = "", device: int | None = None, records: int = _RECORDS
) -> Timeline:
    """One product of bfloat16 operands, both K-contiguous, as a timeline.

    Args:
      m: rows of the result.
      n: its columns.
      k: length of the sums.
      config: a kk kernel, with a schedule or without; "" takes what `hopgemm.plan` takes under
          batch_invariant or, on a GPU without a traced build of that, the first of `traced_configs()`. What
          takes several launches is traced as one.
      device: a GPU; None: the model.
      records: how many calls of each role may be kept on a GPU.

    Raises:
      ValueError: a size, or a config that cannot be traced there.
      RuntimeError: no such GPU, or CUDA failed.
    """
    from . import _trace_core

    plan = _plan(m, n, k, config, device)
    facts = _trace_core.facts(plan["config"], m, n)
    if device is None:
        source = "Modelled, not measured: the kernel's role loops on a machine of a few fixed costs"
        result = _trace_core.model(plan["config"], m, n, k, plan["grid"])
        timeline = Timeline(source, "cycles", False, plan["config"], (m, n, k))
        ctas = _trace_events.read_records(result["streams"], None)
    else:
        from . import _core

        result = _trace_core.run(plan["config"], m, n, k, records, device)
        clocks = result["clocks"]
        mhz = max(1000 * (c1 - c0) / (t1 - t0) for (t0, c0), (t1, c1) in zip(clocks[::2], clocks[1::2]))
        source = (
            f"Measured on {_core.device_info(device)['name']} at {mhz:.0f} MHz, by the traced build, "
            f"{1000 * result['milliseconds']:.1f} us for the launch"
        )
        timeline = Timeline(source, "ns", True, plan["config"], (m, n, k), lost=result["lost"])
        ctas = _trace_events.read_records(result["streams"], clocks)
    k_tiles = -(-k // facts["tile_k"])
    timeline.tiles = _tiles(plan["config"], m, n, k, len(ctas), facts)
    for cta, roles in enumerate(ctas):
        _trace_events.add_cta(timeline, cta, roles, k_tiles, facts["cooperative"])
    return timeline


def _plan(m: int, n: int, k: int, config: str, device: int | None) -> dict[str, Any]:
    from . import _core

    def plan_of(config: str) -> dict[str, Any]:
        # batch_invariant: neither a split nor a tail, whose second kernel would not be seen.
        product = ("bfloat16", "bfloat16", m, n, k, [], [k, 1], [1, k], [n, 1])
        return _core.plan(*product, config=config, device=device, batch_invariant=not config)

    plan = plan_of(config)
    if not config and device is not None and plan["config"].partition("+")[0] not in traced_configs():
        plan = plan_of(traced_configs()[0])
    if plan["launches"] > 1:  # one can be recorded: the same tiles by the same CTAs in one
        tokens = [x for x in _config_name.parse(plan["config"]).tokens if not x.startswith(("waves", "ctas"))]
        instance = plan["config"].partition("+")[0]
        plan = plan_of("+".join([instance, *tokens, f"ctas{plan['grid']}"]))
    if plan["path"] != "gemm" or plan["pack_a"] or plan["pack_b"]:
        raise ValueError(
            f"hopgemm.trace: {m} x {n} x {k} is not one launch of the kernel on operands in place; take M and"
            " N from 1, and K a multiple of 8"
        )
    return dict(plan)


def _tiles(
    config: str, m: int, n: int, k: int, ctas: int, facts: dict[str, Any]
) -> list[list[tuple[int, int]]]:
    walk = _tile_order.scheduled(config, m, n, k, ctas)
    cluster_m, size = facts["cluster_m"], facts["cluster_m"] * facts["cluster_n"]
    tiles = []
    for cta in range(ctas):
        cluster, rank = divmod(cta, size)
        tiles.append(
            [
                (
                    (block.m * cluster_m + rank % cluster_m) * facts["tile_m"],
                    (block.n * facts["cluster_n"] + rank // cluster_m) * facts["tile_n"],
                )
                for block in walk.order[cluster :: walk.pool]
            ]
        )
    return tiles


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hopgemm trace`."""
    for name in ("m", "n", "k"):
        parser.add_argument(name, type=int, metavar=name.upper())
    parser.add_argument("--config", default="", metavar="NAME", help="a kk kernel (what hopgemm plan takes)")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="a page (.html), or JSON for Perfetto (.json)"
    )
    parser.add_argument(
        "--ctas",
        type=int,
        default=8,
        metavar="N",
        help="draw the first N CTAs (8); 0: all. Figures count all",
    )
    parser.add_argument("--model", action="store_true", help="do not measure, even where there is a GPU")
    parser.add_argument("--device", type=int, default=0, metavar="I", help="which GPU (0)")
    parser.add_argument(
        "--records", type=int, default=_RECORDS, metavar="N", help=f"calls kept of each role ({_RECORDS})"
    )
    parser.add_argument(
        "--order",
        action="store_true",
        help="the order of the tiles instead: panels in flight, modelled L2 hits",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def command(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Runs what add_arguments() parsed. Status 0; 1: it could not be done; 2: the command line is wrong."""
    if options.out and options.out.suffix not in (".html", ".json"):
        parser.error(f"--out {options.out}: the name must end in .html or .json")
    if options.ctas < 0 or options.records < 1:
        parser.error("--ctas must be 0 or more, --records 1 or more")
    try:
        if options.order:
            return _print_order(options)
        timeline = trace(options.m, options.n, options.k, options.config, _device(options), options.records)
    except ValueError as error:
        parser.error(str(error))
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    about = _trace_events.about(timeline)
    if options.out:
        ctas = options.ctas or len(timeline.tiles)
        if options.out.suffix == ".html":
            text = _trace_page.page(timeline, ctas)
        else:
            text = json.dumps(_trace_events.chrome_trace(timeline, ctas))
        options.out.write_text(text)
    print(json.dumps(about, indent=1) if options.json else render(about, options.out))
    return 0


def _device(options: argparse.Namespace) -> int | None:
    from . import _core

    return None if options.model or _core.device_count() == 0 else options.device


def _print_order(options: argparse.Namespace) -> int:
    plan = _plan(options.m, options.n, options.k, options.config, None)
    walk = _tile_order.scheduled(plan["config"], options.m, options.n, options.k, plan["grid"])
    orders = _tile_order.compare(plan["config"], options.m, options.n, options.k, plan["grid"])
    if options.json:
        print(json.dumps({"in_flight": walk.pool, "orders": _tile_order.as_json(orders)}, indent=1))
    else:
        print(_tile_order.render(orders, walk.pool))
    return 0


def render(about: dict[str, Any], out: Path | None) -> str:
    """The figures for people."""
    f, unit = about["figures"], about["unit"]
    lines = [
        f"product:      {' x '.join(map(str, about['shape']))}, {about['config']}",
        f"source:       {about['source']}",
        f"makespan:     {f['makespan']:.0f} {unit}, {f['ctas']} CTAs",
        f"tensor cores: {100 * f['tensor_idle']:.1f}% idle, {100 * f['mma_gap']:.1f}% within a tile",
        f"waits:        consumers for full {100 * f['wait_full']:.1f}%, producer for empty "
        f"{100 * f['wait_empty']:.1f}% of the time",
        f"loads:        at most {f['max_loads_in_flight']} stages in flight",
    ]
    if about["inferred_landings"]:
        lines.append(
            f"landings:     {about['inferred_landings']} were not seen, and are bounded by the wait for them"
        )
    if about["lost_records"]:
        lines.append(f"LOST:         {about['lost_records']} records; pass a larger --records")
    if out:
        lines.append(f"written:      {out}")
    return "\n".join(lines)
