# SPDX-License-Identifier: Apache-2.0
# Projects that use the components cuda and nccl, from every layout in which NCCL comes.
list(GET CMAKE_CUDA_ARCHITECTURES 0 architecture)
set(nvcc
  -DWITH_NVCC=ON -DCMAKE_CUDA_COMPILER=${CMAKE_CUDA_COMPILER}
  -DCMAKE_CUDA_ARCHITECTURES=${architecture}
)
set(toolkit -DCUDAToolkit_ROOT=${CUDAToolkit_TARGET_DIR})
set(without_cuda -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON)

# A consumer of C++ alone, and one with nvcc.
gradlane_package_test(
  components_cuda
  PROJECT ${consumer}
  LABELS gpu
  ARGUMENTS ${installed} ${toolkit} -DEXPECT_CUDA=ON "-DCOMPONENTS=COMPONENTS cuda"
)
gradlane_package_test(
  components_cuda_nvcc
  PROJECT ${consumer}
  LABELS gpu
  ARGUMENTS ${installed} ${nvcc} -DEXPECT_CUDA=ON "-DCOMPONENTS=COMPONENTS cuda"
)
gradlane_package_test(
  components_cuda_absent
  PROJECT ${consumer}
  LABELS gpu
  FAILS "find_package for module CUDAToolkit called with REQUIRED"
  ARGUMENTS ${installed} ${without_cuda} "-DCOMPONENTS=COMPONENTS cuda"
)
gradlane_package_test(
  components_optional_cuda_absent
  PROJECT ${consumer}
  LABELS gpu
  ARGUMENTS ${installed} ${without_cuda} "-DCOMPONENTS=COMPONENTS core OPTIONAL_COMPONENTS cuda nccl"
)
gradlane_package_test(
  add_subdirectory_cuda
  PROJECT ${consumer}
  LABELS gpu
  ARGUMENTS -DGRADLANE_SOURCE=${PROJECT_SOURCE_DIR} ${nvcc} -DEXPECT_CUDA=ON
)
gradlane_package_test(
  build_tree_cuda
  PROJECT ${consumer}
  LABELS gpu
  ARGUMENTS
    -Dgradlane_DIR=${PROJECT_BINARY_DIR} ${toolkit} -DEXPECT_CUDA=ON "-DCOMPONENTS=COMPONENTS cuda"
)

if(NOT gradlane_nccl OR NOT NCCL_LIBRARY)
  return()
endif()

# Two pretend installations: a wheel of Python's, and one with a CONFIG package; and a header of old.
set(layouts ${CMAKE_CURRENT_BINARY_DIR}/layouts)
file(REAL_PATH ${NCCL_LIBRARY} library)
foreach(layout wheel config)
  file(MAKE_DIRECTORY ${layouts}/${layout}/lib)
  file(COPY ${NCCL_INCLUDE_DIR}/ DESTINATION ${layouts}/${layout}/include FILES_MATCHING PATTERN "nccl*")
endforeach()
file(CREATE_LINK ${library} ${layouts}/wheel/lib/libnccl.so.2 SYMBOLIC)
file(CREATE_LINK ${library} ${layouts}/config/lib/libnccl_of_config.so SYMBOLIC)
file(
  WRITE ${layouts}/config/lib/cmake/nccl/nccl-config.cmake
  "if(NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL SHARED IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES
    IMPORTED_LOCATION ${layouts}/config/lib/libnccl_of_config.so
    INTERFACE_INCLUDE_DIRECTORIES ${layouts}/config/include)
endif()
"
)
file(
  WRITE ${layouts}/config/lib/cmake/nccl/nccl-config-version.cmake
  "set(PACKAGE_VERSION ${NCCL_VERSION})
set(PACKAGE_VERSION_COMPATIBLE TRUE)
"
)
file(
  WRITE ${layouts}/old/include/nccl.h
  "#define NCCL_MAJOR 1\n#define NCCL_MINOR 3\n#define NCCL_PATCH 5\n"
)
file(WRITE ${layouts}/old/lib/libnccl.so "")

set(with_nccl -DEXPECT_CUDA=ON "-DCOMPONENTS=COMPONENTS nccl")
cmake_path(GET NCCL_INCLUDE_DIR PARENT_PATH found_in)
gradlane_package_test(
  components_nccl
  PROJECT ${consumer}
  LABELS gpu
  ARGUMENTS ${installed} ${toolkit} ${with_nccl} -DNCCL_ROOT=${found_in} -DEXPECT_NCCL=${found_in}
)
gradlane_package_test(
  nccl_of_wheel
  PROJECT ${consumer}
  LABELS gpu
  ARGUMENTS
    ${installed} ${toolkit} ${with_nccl} -DNCCL_ROOT=${layouts}/wheel -DEXPECT_NCCL=${layouts}/wheel
)
gradlane_package_test(
  nccl_of_config
  PROJECT ${consumer}
  LABELS gpu
  ARGUMENTS
    ${installed} ${toolkit} ${with_nccl} -DNCCL_ROOT=${layouts}/config
    -DEXPECT_NCCL=${layouts}/config
)
gradlane_package_test(
  nccl_of_old
  PROJECT ${consumer}
  LABELS gpu
  FAILS "component 'nccl' needs NCCL ${gradlane_nccl_version} or newer: set NCCL_ROOT"
  ARGUMENTS ${installed} ${toolkit} ${with_nccl} -DNCCL_ROOT=${layouts}/old
)
gradlane_package_test(
  add_subdirectory_nccl
  PROJECT ${consumer}
  LABELS gpu
  ARGUMENTS
    -DGRADLANE_SOURCE=${PROJECT_SOURCE_DIR} ${toolkit} -DEXPECT_CUDA=ON -DNCCL_ROOT=${found_in}
    -DEXPECT_NCCL=${found_in}
)
