"""PEP 517 backend: scikit-build-core, plus the CUDA compiler from PyPI where the machine has none.

Requirements in pyproject.toml cannot depend on what is installed, hence these few lines.
"""

import os
import shutil
from pathlib import Path

from scikit_build_core import build as _backend
from scikit_build_core.build import *  # noqa: F403

_NVCC_FROM_PYPI = [
    f"{name}==13.0.*"
    for name in (
        "nvidia-cuda-nvcc",
        "nvidia-cuda-crt",
        "nvidia-nvvm",
        "nvidia-cuda-runtime",
        "nvidia-cuda-cccl",
    )
]


def _missing_nvcc():
    """The packages that bring nvcc, or nothing where cmake/FindNvcc.cmake will find one."""
    if any(os.environ.get(name) for name in ("CUDACXX", "CUDA_HOME", "CUDA_PATH")):
        return []
    if shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists():
        return []
    return _NVCC_FROM_PYPI


def get_requires_for_build_wheel(config_settings=None):
    """Requirements beyond `build-system.requires` for a wheel."""
    return [*_backend.get_requires_for_build_wheel(config_settings), *_missing_nvcc()]


def get_requires_for_build_editable(config_settings=None):
    """Requirements beyond `build-system.requires` for an editable install."""
    return [*_backend.get_requires_for_build_editable(config_settings), *_missing_nvcc()]
