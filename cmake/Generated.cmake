# Sources that the build writes into its own folder: the kernels that src/config/instances.def asks for, dealt
# over several files that compile side by side, and the wgmma wrappers that these kernels use.

# OUT receives the sources; FOLDER is where they and wgmma.gen.cuh go.
function(hopgemm_generate out folder)
  set(num_shards 12)
  set(def "${PROJECT_SOURCE_DIR}/src/config/instances.def")
  set(dealer "${PROJECT_SOURCE_DIR}/src/config/generate_instances.py")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${def}" "${dealer}")
  file(MAKE_DIRECTORY "${folder}")

  # At configure time: both scripts take milliseconds, and a file that would not change must not be touched.
  execute_process(COMMAND "${Python_EXECUTABLE}" "${dealer}" "${def}" "${folder}" ${num_shards}
    COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${Python_EXECUTABLE}" "${dealer}" "${def}" --widths
    OUTPUT_VARIABLE widths OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(widths)
  hopgemm_generate_wgmma("${folder}" ${widths})

  set(sources "${folder}/instances.cc")
  math(EXPR last "${num_shards} - 1")
  foreach(shard RANGE ${last})
    list(APPEND sources "${folder}/instances_${shard}.cu")
  endforeach()
  set(${out} "${sources}" PARENT_SCOPE)
endfunction()

# Writes FOLDER/wgmma.gen.cuh with one wrapper for each of the instruction widths that follow.
function(hopgemm_generate_wgmma folder)
  set(wgmma "${PROJECT_SOURCE_DIR}/src/hw/ptx/generate_wgmma.py")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${wgmma}")
  file(MAKE_DIRECTORY "${folder}")
  execute_process(COMMAND "${Python_EXECUTABLE}" "${wgmma}" "${folder}/wgmma.gen.cuh.new" ${ARGN}
    COMMAND_ERROR_IS_FATAL ANY)
  file(COPY_FILE "${folder}/wgmma.gen.cuh.new" "${folder}/wgmma.gen.cuh" ONLY_IF_DIFFERENT)
endfunction()
