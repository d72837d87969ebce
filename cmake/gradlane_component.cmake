# SPDX-License-Identifier: Apache-2.0
include_guard()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# gradlane_component(<name> [LINK <target>...])
#
# Target gradlane::<name>, with an export file of its own: who asks for one component never meets
# the dependencies of another. Linked targets need not exist here. What a machine has decides what
# is built and tested, never what is installed.
function(gradlane_component name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LINK")
  set(target gradlane_${name})
  add_library(${target} INTERFACE)
  add_library(gradlane::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(${target} INTERFACE cxx_std_20)
  # CMake 3.25 does not know that nvcc can do C++20.
  target_compile_options(${target} INTERFACE $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-std=c++20>)
  target_include_directories(${target} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
  target_link_libraries(${target} INTERFACE ${arg_LINK})
  set_property(GLOBAL APPEND PROPERTY gradlane_components ${name})
endfunction()

# The oldest versions that will do: nvcc's C++20, and NCCL's ncclCommSplit.
set(gradlane_cuda_version 12.0)
set(gradlane_nccl_version 2.18)

# gradlane_package(): the package of all components, in the build tree and, with GRADLANE_INSTALL,
# in the install tree.
function(gradlane_package)
  get_property(components GLOBAL PROPERTY gradlane_components)
  set(destination ${CMAKE_INSTALL_DATADIR}/cmake/gradlane)
  set(config ${PROJECT_BINARY_DIR}/gradlane-config.cmake)
  set(version ${PROJECT_BINARY_DIR}/gradlane-config-version.cmake)
  set(find_nccl ${PROJECT_BINARY_DIR}/FindNCCL.cmake)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/gradlane-config.cmake.in ${config} @ONLY)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/FindNCCL.cmake ${find_nccl} COPYONLY)
  write_basic_package_version_file(${version} COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)

  foreach(name IN LISTS components)
    install(
      TARGETS gradlane_${name}
      EXPORT gradlane-${name}
      INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    )
    export(
      EXPORT gradlane-${name}
      FILE ${PROJECT_BINARY_DIR}/gradlane-${name}.cmake
      NAMESPACE gradlane::
    )
    if(GRADLANE_INSTALL)
      install(
        EXPORT gradlane-${name}
        FILE gradlane-${name}.cmake
        NAMESPACE gradlane::
        DESTINATION ${destination}
      )
    endif()
  endforeach()
  if(GRADLANE_INSTALL)
    install(FILES ${config} ${version} ${find_nccl} DESTINATION ${destination})
    install(
      DIRECTORY ${PROJECT_SOURCE_DIR}/include/
      DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
      FILES_MATCHING PATTERN "*.hpp" PATTERN "*.cuh"
    )
    install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
  endif()
endfunction()
