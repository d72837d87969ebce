# SPDX-License-Identifier: Apache-2.0
# find_package(NCCL [<version>]): target NCCL::NCCL, variables NCCL_FOUND, NCCL_VERSION,
# NCCL_INCLUDE_DIR, NCCL_LIBRARY.
#
# A CONFIG package that defines NCCL::NCCL comes first. Then nccl.h and the library are looked for
# below NCCL_ROOT (a variable of CMake or of the environment), in the CUDA toolkit that was found, and
# where CMake looks by itself. The library is that beside the header where there is one, so that two
# installations are not mixed. NCCL's wheel for Python has only libnccl.so.2: NCCL_ROOT is then its
# folder nvidia/nccl. No program is run.
include(FindPackageHandleStandardArgs)

find_package(NCCL ${NCCL_FIND_VERSION} QUIET CONFIG)
if(NCCL_FOUND AND TARGET NCCL::NCCL)
  find_package_handle_standard_args(NCCL CONFIG_MODE)
  return()
endif()

find_path(
  NCCL_INCLUDE_DIR nccl.h
  HINTS ${CUDAToolkit_INCLUDE_DIRS}
  DOC "Folder of nccl.h"
)
if(NCCL_INCLUDE_DIR)
  cmake_path(GET NCCL_INCLUDE_DIR PARENT_PATH beside_include)
endif()
find_library(
  NCCL_LIBRARY
  NAMES nccl libnccl.so.2 NAMES_PER_DIR
  HINTS ${beside_include} ${CUDAToolkit_LIBRARY_DIR}
  PATH_SUFFIXES lib lib64
  DOC "NCCL's library"
)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

unset(NCCL_VERSION)
if(EXISTS "${NCCL_INCLUDE_DIR}/nccl.h")
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS ${NCCL_INCLUDE_DIR}/nccl.h line REGEX "^#define NCCL_${part} +[0-9]+")
    string(REGEX MATCH "[0-9]+" number "${line}")
    list(APPEND NCCL_VERSION ${number})
  endforeach()
  list(JOIN NCCL_VERSION . NCCL_VERSION)
endif()

find_package_handle_standard_args(
  NCCL
  REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR
  VERSION_VAR NCCL_VERSION
  REASON_FAILURE_MESSAGE "set NCCL_ROOT to the folder that holds include/nccl.h and lib/"
)

if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL UNKNOWN IMPORTED)
  set_target_properties(
    NCCL::NCCL
    PROPERTIES
      IMPORTED_LOCATION ${NCCL_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR}
  )
endif()
