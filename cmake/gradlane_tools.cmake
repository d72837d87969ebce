# SPDX-License-Identifier: Apache-2.0
# How gradlane's own tests, examples and benchmarks are compiled. Projects that use gradlane never
# see this file.
include_guard()

set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_EXTENSIONS OFF)

find_program(GRADLANE_CCACHE ccache)
if(GRADLANE_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${GRADLANE_CCACHE})
endif()

if(GRADLANE_SANITIZE)
  add_compile_options(-fsanitize=${GRADLANE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${GRADLANE_SANITIZE})
  # ThreadSanitizer of g++ 12 cannot map its shadow where the kernel randomises 32 bits of an
  # address: its programs run without randomisation.
  find_program(GRADLANE_SETARCH setarch)
  if(GRADLANE_SANITIZE MATCHES "thread" AND GRADLANE_SETARCH)
    execute_process(
      COMMAND ${GRADLANE_SETARCH} -R true RESULT_VARIABLE refused OUTPUT_QUIET ERROR_QUIET
    )
    if(refused EQUAL 0)
      set(CMAKE_CROSSCOMPILING_EMULATOR ${GRADLANE_SETARCH} -R)
    endif()
  endif()
endif()

# gradlane_find_mpi(): finds MPI, if there is one, and says so where it is not the one we test with.
macro(gradlane_find_mpi)
  set(MPI_CXX_SKIP_MPICXX ON)  # the C interface only
  find_package(MPI COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    file(STRINGS ${MPI_CXX_HEADER_DIR}/mpi.h gradlane_mpich REGEX "define MPICH_VERSION")
    if(NOT gradlane_mpich)
      message(
        WARNING
          "The MPI found is not MPICH, the only one that gradlane is tested with. Where MPICH is "
          "installed too, choose it: -DMPI_CXX_COMPILER=mpicxx.mpich "
          "-DMPIEXEC_EXECUTABLE=/usr/bin/mpiexec.mpich"
      )
    endif()
  endif()
endmacro()
