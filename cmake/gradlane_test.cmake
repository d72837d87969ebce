# SPDX-License-Identifier: Apache-2.0
include_guard()
include(gradlane_ranks)
include(gradlane_warnings)
include(doctest)  # doctest_discover_tests, from doctest's package

# gradlane_subdirectories(): adds every folder beside the calling CMakeLists.txt that has one too.
macro(gradlane_subdirectories)
  file(GLOB gradlane_found CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*/CMakeLists.txt)
  foreach(file IN LISTS gradlane_found)
    cmake_path(GET file PARENT_PATH folder)
    add_subdirectory(${folder})
  endforeach()
endmacro()

# gradlane_test(<path> [SOURCE <file>] [LINK <target>...] [RANKS <n>...] [CLIQUES <n>]
#               [LABELS <label>...] [TIMEOUT <seconds>] [SANITIZE] [SCHEDULES <n>])
#
# One program from one source file; the path is relative to tests/. Program and test are called by
# that path with _ for / and without .cpp or .cu. SOURCE: where the file lies if not there. Each doctest case is a test of its own, "name: case".
# With RANKS the program runs as a whole on n MPI ranks instead, once for each n: "name.ranks<n>".
# Where MPI is absent such tests are skipped, and so are all that link gradlane::mpi.
#
# CLIQUES makes MPICH pretend that the ranks sit on that many nodes and appends ".cliques<n>" to
# the names; the same file may be registered with and without. The first folder of the path is a
# label. SANITIZE keeps an MPI test in builds with GRADLANE_SANITIZE, which leave them out.
#
# A test is a CUDA test if its file ends in .cu or it links gradlane::cuda or gradlane::nccl. It has
# the label gpu, runs under GRADLANE_PTXSIM where that is set, and is skipped where there is no GPU.
# SCHEDULES adds, under ptxsim, "name[.ranks<n>].schedules<n>": the whole program in as many random
# orders of its work, each one that its streams and events allow.
function(gradlane_test path)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SANITIZE" "SOURCE;CLIQUES;TIMEOUT;SCHEDULES" "LINK;RANKS;LABELS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "gradlane_test(${path}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  string(REGEX REPLACE "\\.(cpp|cu)$" "" name ${path})
  string(REGEX REPLACE "/.*" "" folder ${path})
  string(REPLACE "/" "_" name ${name})
  set(needs_cuda FALSE)
  if(path MATCHES "\\.cu$" OR arg_LINK MATCHES "gradlane::(cuda|nccl)")
    set(needs_cuda TRUE)
  endif()
  if(needs_cuda AND NOT gradlane_nvcc)
    return()  # said once, where nvcc was looked for
  endif()
  if("gradlane::nccl" IN_LIST arg_LINK AND NOT gradlane_nccl)
    message(STATUS "test ${name}: skipped, no NCCL")
    return()
  endif()
  set(needs_mpi FALSE)
  if(arg_RANKS OR "gradlane::mpi" IN_LIST arg_LINK)
    set(needs_mpi TRUE)
  endif()
  if(needs_mpi AND NOT MPI_CXX_FOUND)
    message(STATUS "test ${name}: skipped, no MPI")
    return()
  endif()
  if(needs_mpi AND GRADLANE_SANITIZE AND NOT arg_SANITIZE)
    return()
  endif()

  if(NOT arg_SOURCE)
    set(arg_SOURCE ${gradlane_tests_dir}/${path})
  endif()
  if(NOT TARGET ${name})
    add_executable(${name} ${arg_SOURCE})
    target_compile_definitions(${name} PRIVATE _GLIBCXX_ASSERTIONS)
    gradlane_warnings(${name})
    if(needs_mpi)
      target_link_libraries(${name} PRIVATE gradlane_mpi_main gradlane::mpi ${arg_LINK})
    else()
      target_link_libraries(${name} PRIVATE gradlane_doctest_main gradlane::core ${arg_LINK})
    endif()
    if(needs_cuda)
      target_link_libraries(${name} PRIVATE gradlane_needs_gpu gradlane::cuda)
      set_target_properties(${name} PROPERTIES CROSSCOMPILING_EMULATOR "${GRADLANE_PTXSIM}")
      add_dependencies(gpu ${name})
    endif()
  endif()

  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  set(environment "")
  set(labels ${folder} ${arg_LABELS})
  set(properties TIMEOUT ${arg_TIMEOUT})
  if(needs_cuda)
    list(APPEND labels gpu)
    list(APPEND properties SKIP_RETURN_CODE 77)
    # Spinning kernels must not wait for others to be loaded; races and unwritten memory are faults.
    set(environment CUDA_MODULE_LOADING=EAGER PTXSIM_CHECK=race,init-fatal)
  endif()
  if(NOT arg_RANKS)
    doctest_discover_tests(${name} TEST_PREFIX "${name}: " PROPERTIES ${properties})
    # A list survives doctest's PROPERTIES only as its first item; ctest reads this file last.
    set(script ${CMAKE_CURRENT_BINARY_DIR}/${name}_labels.cmake)
    file(
      CONFIGURE
      OUTPUT ${script}
      CONTENT "if(@name@_TESTS)
  set_tests_properties(
    \${@name@_TESTS} PROPERTIES LABELS \"@labels@\" ENVIRONMENT \"@environment@\"
  )
endif()
"
      @ONLY
    )
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${script})
    if(arg_SCHEDULES AND GRADLANE_PTXSIM)
      gradlane_schedules_test(${name} ${arg_SCHEDULES} $<TARGET_FILE:${name}>)
    endif()
    return()
  endif()
  foreach(ranks IN LISTS arg_RANKS)
    set(entry ${name}.ranks${ranks})
    if(arg_CLIQUES)
      string(APPEND entry .cliques${arg_CLIQUES})
    endif()
    gradlane_add_ranks_test(${entry} ${ranks} ${name})
    set_tests_properties(${entry} PROPERTIES LABELS "${labels}" ${properties})
    set_property(TEST ${entry} APPEND PROPERTY ENVIRONMENT ${environment})
    if(arg_CLIQUES)
      set_property(TEST ${entry} APPEND PROPERTY ENVIRONMENT MPIR_CVAR_NUM_CLIQUES=${arg_CLIQUES})
    endif()
    if(arg_SCHEDULES AND GRADLANE_PTXSIM)
      gradlane_mpiexec(command ${ranks} ${name})
      gradlane_schedules_test(${entry} ${arg_SCHEDULES} ${command})
    endif()
  endforeach()
endfunction()

# gradlane_schedules_test(<entry> <n> <command>...): runs a command under ptxsim in n random orders.
function(gradlane_schedules_test entry count)
  set(name ${entry}.schedules${count})
  add_test(
    NAME ${name} COMMAND ${gradlane_tests_dir}/support/schedules.sh ${count} ${GRADLANE_PTXSIM} ${ARGN}
  )
  set_tests_properties(${name} PROPERTIES LABELS "gpu;schedules" TIMEOUT 1200 PROCESSORS 2)
  set_property(TEST ${name} PROPERTY ENVIRONMENT ${environment})
endfunction()
