"""PEP 517 backend: scikit-build-core, plus the CUDA compiler from PyPI where the machine has none.

Requirements in pyproject.toml cannot depend on what is installed, hence these few lines.
"""

import os
import re
import shutil
import subprocess
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
    """The packages that bring nvcc; none where cmake/FindNvcc.cmake will find one of CUDA 13 or later."""
    roots = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    candidates = (os.environ.get("CUDACXX"), shutil.which("nvcc"), *(f"{r}/bin/nvcc" for r in roots if r))
    nvcc = next((path for path in candidates if path and Path(path).exists()), None)
    if nvcc is None:
        return _NVCC_FROM_PYPI
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    release = re.search(r"release (\d+)", said)
    return [] if release and int(release[1]) >= 13 else _NVCC_FROM_PYPI


def get_requires_for_build_wheel(config_settings=None):
    """Requirements beyond `build-system.requires` for a wheel."""
    return [*_backend.get_requires_for_build_wheel(config_settings), *_missing_nvcc()]


def get_requires_for_build_editable(config_settings=None):
    """Requirements beyond `build-system.requires` for an editable install."""
    return [*_backend.get_requires_for_build_editable(config_settings), *_missing_nvcc()]
