# SPDX-License-Identifier: Apache-2.0
include(CMakeFindDependencyMacro)
find_dependency(gradlane)
include(${CMAKE_CURRENT_LIST_DIR}/exporter-targets.cmake)
