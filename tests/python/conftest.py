"""What every test relies on: tests marked `gpu` are skipped, with a reason, where there is no Hopper GPU.

No cache of tuned configs is read or written.
"""

import functools
import os

import pytest

os.environ.setdefault("HOPGEMM_CACHE", "off")  # what was tuned on this machine is no business of the tests


def pytest_addoption(parser):
    parser.addoption(
        "--require-gpu",
        action="store_true",
        help="without a Hopper GPU, fail at once instead of skipping the tests marked gpu",
    )


@functools.cache
def _why_no_hopper():
    """Empty where device 0 is a Hopper GPU, else what was found instead."""
    from hopgemm import _core

    if _core.device_count() == 0:
        return "no GPU or no driver"
    capability = _core.device_info(0)["compute_capability"]
    return "" if tuple(capability) == (9, 0) else f"compute capability {capability}, not (9, 0)"


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and (reason := _why_no_hopper()):
        if item.config.getoption("--require-gpu"):
            pytest.exit(f"--require-gpu: {reason}", returncode=1)
        pytest.skip(f"needs a Hopper GPU: {reason}")
