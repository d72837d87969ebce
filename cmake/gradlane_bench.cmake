# SPDX-License-Identifier: Apache-2.0
include_guard()
include(gradlane_warnings)

# gradlane_bench(<file>.cpp [LINK <target>...])
#
# One benchmark program from one source file, called by the file's path below bench/ with _ for /
# and without .cpp. Programs that link gradlane::mpi bring their own main and are skipped where MPI
# is absent; the others get Google Benchmark's.
function(gradlane_bench file)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LINK")
  file(REAL_PATH ${file} path)
  file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR}/bench ${path})
  string(REGEX REPLACE "\\.cpp$" "" name ${name})
  string(REPLACE "/" "_" name ${name})
  if("gradlane::mpi" IN_LIST arg_LINK AND NOT MPI_CXX_FOUND)
    message(STATUS "benchmark ${name}: skipped, no MPI")
    return()
  endif()
  add_executable(${name} ${path})
  gradlane_warnings(${name})
  target_compile_options(${name} PRIVATE -O3)
  target_link_libraries(${name} PRIVATE gradlane::core ${arg_LINK})
  if("gradlane::mpi" IN_LIST arg_LINK)
    target_link_libraries(${name} PRIVATE benchmark::benchmark)
  else()
    target_link_libraries(${name} PRIVATE benchmark::benchmark_main)
  endif()
endfunction()
