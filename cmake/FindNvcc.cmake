# Included before project(): settles which nvcc builds this. The compiler that the build backend had
# installed from PyPI, which it does only where the machine's own is missing or too old; else CUDACXX, the PATH,
# CUDA_HOME, CUDA_PATH or the usual folder.
if(DEFINED CMAKE_CUDA_COMPILER)
  return()
endif()
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "import pathlib, sys
roots = [pathlib.Path(p) / 'nvidia' / 'cu13' for p in sys.path]
print(next((r for r in roots if (r / 'bin' / 'nvcc').exists()), ''))"
  OUTPUT_VARIABLE _pypi_cuda OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT _pypi_cuda)
  if(DEFINED ENV{CUDACXX})
    return()
  endif()
  find_program(HOPGEMM_NVCC nvcc PATHS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  if(NOT HOPGEMM_NVCC)
    message(FATAL_ERROR "hopgemm: no nvcc found. Install CUDA 13, set CUDACXX to its nvcc, or let pip build in "
                        "isolation (without --no-build-isolation it brings the compiler along).")
  endif()
  set(CMAKE_CUDA_COMPILER "${HOPGEMM_NVCC}")
  return()
endif()
message(STATUS "nvcc from PyPI: ${_pypi_cuda}")
set(CMAKE_CUDA_COMPILER "${_pypi_cuda}/bin/nvcc")
set(CUDAToolkit_ROOT "${_pypi_cuda}")
# These packages keep their libraries in lib/ where nvcc.profile says lib64/, and have only the versioned
# libcudart.so.13, which CMake wants to see although the static one is linked.
string(APPEND CMAKE_CUDA_FLAGS_INIT " -L${_pypi_cuda}/lib")
file(GLOB _cudart "${_pypi_cuda}/lib/libcudart.so.*")
set(CUDA_CUDART "${_cudart}" CACHE FILEPATH "" FORCE)
