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

if(GRADLANE_CCACHE AND NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${GRADLANE_CCACHE})
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

# gradlane_find_cuda(): finds nvcc and NCCL, if there are, and what runs programs without a GPU. Sets
# gradlane_nvcc and gradlane_nccl, which say what of our own is built. The target `gpu` builds all
# programs that need nvcc.
macro(gradlane_find_cuda)
  set(gradlane_nvcc FALSE)
  set(gradlane_nccl FALSE)
  set(CMAKE_CUDA_ARCHITECTURES 80 90 CACHE STRING "Architectures of our own CUDA programs")
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
  if(GRADLANE_CUDA AND NOT GRADLANE_SANITIZE)
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      enable_language(CUDA)
      find_package(CUDAToolkit ${gradlane_cuda_version})
    endif()
  endif()
  if(CMAKE_CUDA_COMPILER AND CUDAToolkit_FOUND)
    set(gradlane_nvcc TRUE)
    add_custom_target(gpu)
    add_compile_options($<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-no-compress>)  # PTX that tools can read
    find_package(NCCL ${gradlane_nccl_version})
    set(gradlane_nccl ${NCCL_FOUND})
  endif()
  if(GRADLANE_PTXSIM)
    cmake_path(ABSOLUTE_PATH GRADLANE_PTXSIM BASE_DIRECTORY ${PROJECT_SOURCE_DIR} NORMALIZE)
    if(NOT EXISTS ${GRADLANE_PTXSIM})
      message(STATUS "There is no ${GRADLANE_PTXSIM}: tests of CUDA programs need a GPU")
      set(GRADLANE_PTXSIM "")
    endif()
  endif()
endmacro()
