# SPDX-License-Identifier: Apache-2.0
# The model's operations on a GPU: target gradlane_bert_cuda, where nvcc is found.
if(PROJECT_IS_TOP_LEVEL)
  include(CheckLanguage)
  check_language(CUDA)
  set(gradlane_nvcc FALSE)
  if(CMAKE_CUDA_COMPILER AND TARGET gradlane::cuda)
    set(CMAKE_CUDA_ARCHITECTURES 80 90 CACHE STRING "Architectures of the CUDA operations")
    enable_language(CUDA)
    set(gradlane_nvcc TRUE)
  endif()
endif()
if(NOT gradlane_nvcc)
  message(STATUS "example bert: no CUDA operations, they need nvcc")
  return()
endif()

add_library(
  gradlane_bert_cuda STATIC
  cuda/attention.cu
  cuda/cross_entropy.cu
  cuda/index.cpp
  cuda/linear.cu
  cuda/loss_scaler.cu
  cuda/matmul.cpp
  cuda/norms.cu
  cuda/optimizer.cu
  cuda/pointwise.cu
  cuda/prefetch.cpp
)
target_link_libraries(
  gradlane_bert_cuda PUBLIC gradlane_bert gradlane::cuda PRIVATE CUDA::cudart CUDA::cublasLt
)
if(NOT PROJECT_IS_TOP_LEVEL AND COMMAND gradlane_warnings)
  gradlane_warnings(gradlane_bert_cuda)
endif()

# The GPU's side of parity.py.
add_executable(bert_parity_cuda cuda/parity_main.cpp)
target_link_libraries(bert_parity_cuda PRIVATE gradlane_bert_cuda CUDA::cudart)
if(COMMAND gradlane_warnings)
  gradlane_warnings(bert_parity_cuda)
endif()
if(TARGET gpu)
  add_dependencies(gpu bert_parity_cuda)
endif()
