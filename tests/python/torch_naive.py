"""A copy of the package whose C++ operators run on CPU tensors, by tests/cpp/naive_gemm.cc, not the kernels.

The conversion code of the operators then gets every test that CPU tensors can give it. For a subprocess: put
the folder that `build()` filled first on PYTHONPATH.
"""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CORE = """
def plan(*args, device=None, **options):
    raise RuntimeError("hopgemm: device 0 is a Stand-In with compute capability 8.0; 9.0 is needed")

def device_count():
    return 0
"""
# The real module, but for its registration: the CPU key belongs to the C++ here.
CPU = """
from ._torch_cpu_python import product

def register():
    pass
"""


def build(folder):
    """Compiles both libraries and lays out the package in `folder`; returns `folder`."""
    package = folder / "hopgemm"
    package.mkdir()
    source = Path(importlib.util.find_spec("hopgemm").submodule_search_locations[0])
    for file in source.glob("*.py"):
        shutil.copy(file, package)
    (package / "_torch_cpu.py").rename(package / "_torch_cpu_python.py")
    (package / "_torch_cpu.py").write_text(CPU)
    (package / "_core.py").write_text(CORE)
    flags = ["g++", "-std=c++20", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden"]
    flags += ["-I", str(ROOT / "src")]
    kernel, operators = package / "libhopgemm.so", package / "_torch_ops.so"
    compile_ = [*flags, str(ROOT / "tests/cpp/naive_gemm.cc"), "-o", str(kernel)]
    subprocess.run(compile_, check=True)
    link = ["-L", str(package), "-lhopgemm", "-ldl", "-Wl,--no-undefined", "-Wl,-rpath,$ORIGIN"]
    compile_ = [
        *flags,
        "-DHOPGEMM_TORCH_ON_CPU",
        str(ROOT / "src/bindings/torch_ops.cc"),
        "-o",
        str(operators),
        *link,
    ]
    subprocess.run(compile_, check=True)
    return folder


if __name__ == "__main__":
    build(Path(sys.argv[1]))
