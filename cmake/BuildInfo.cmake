# What the build takes from its Python environment (nanobind, XLA FFI headers), and what it records of itself.

# Makes nanobind_add_module() known.
macro(hopgemm_find_nanobind)
  execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
    OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  find_package(nanobind 3 CONFIG REQUIRED)
endmacro()

# The include folder of the jaxlib in the build environment; jaxlib itself is not imported.
function(hopgemm_find_xla_ffi out)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "import importlib.util, pathlib
spec = importlib.util.find_spec('jaxlib')
print(pathlib.Path(spec.origin).parent / 'include' if spec else '')"
    OUTPUT_VARIABLE dir OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  if(NOT EXISTS "${dir}/xla/ffi/api/ffi.h")
    message(FATAL_ERROR
      "hopgemm: no XLA FFI headers. Let pip build in isolation, or install jaxlib==0.10.2 first.")
  endif()
  file(STRINGS "${dir}/xla/ffi/api/c_api.h" version REGEX "#define XLA_FFI_API_(MAJOR|MINOR) ")
  message(STATUS "XLA FFI headers: ${version}")
  set(${out} "${dir}" PARENT_SCOPE)
endfunction()

# The compilers, and the source revision: HOPGEMM_COMMIT in the environment, else git, else "unknown".
function(hopgemm_build_info compiler commit)
  set(host "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
  set(${compiler} "nvcc ${CMAKE_CUDA_COMPILER_VERSION}, ${host}" PARENT_SCOPE)
  set(revision "$ENV{HOPGEMM_COMMIT}")
  if(NOT revision AND EXISTS "${PROJECT_SOURCE_DIR}/.git")
    execute_process(COMMAND git -C "${PROJECT_SOURCE_DIR}" describe --always --dirty --abbrev=12 --exclude=*
      OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(NOT revision)
    set(revision "unknown")
  endif()
  set(${commit} "${revision}" PARENT_SCOPE)
endfunction()
