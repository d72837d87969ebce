# SPDX-License-Identifier: Apache-2.0
include_guard()
include(gradlane_warnings)

# gradlane_header_tests(<component> HEADERS <path below include/>... [TOGETHER <path>...]
#                       [LINK <target>...] [NVCC])
#
# One program that proves that each header compiles alone, may be included twice, and may be linked
# twice: a source file per header that includes nothing else, and two that include all headers, so
# that whatever a header forgets to make inline is defined at least three times. TOGETHER names
# headers that only those two include.
#
# With NVCC the second of the two is a .cu, so that a header that means different things to the two
# compilers is found out; *.cuh are included there and, each alone, by a .cu of their own.
function(gradlane_header_tests component)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NVCC" "" "HEADERS;TOGETHER;LINK")
  set(name headers_${component}_test)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${component})
  set(first "")
  set(second "")
  set(second_suffix cpp)
  if(arg_NVCC)
    set(second_suffix cu)
  endif()
  set(sources ${CMAKE_CURRENT_SOURCE_DIR}/main.cpp)
  foreach(header IN LISTS arg_HEADERS arg_TOGETHER)
    set(include "#include <${header}>\n")
    string(APPEND second "${include}")
    set(suffix cu)
    if(header MATCHES "\\.hpp$")
      string(APPEND first "${include}")
      set(suffix cpp)
    endif()
    if(header IN_LIST arg_HEADERS)
      set(source ${folder}/${header}.${suffix})
      file(CONFIGURE OUTPUT ${source} CONTENT "${include}${include}" @ONLY)
      list(APPEND sources ${source})
    endif()
  endforeach()
  foreach(unit first second)
    set(suffix cpp)
    if(unit STREQUAL "second")
      set(suffix ${second_suffix})
    endif()
    set(source ${folder}/${unit}.${suffix})
    file(
      CONFIGURE
      OUTPUT ${source}
      CONTENT "${${unit}}void const* ${unit}() { return &gradlane::no_deadline; }\n"
      @ONLY
    )
    list(APPEND sources ${source})
  endforeach()
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE gradlane::${component} ${arg_LINK})
  gradlane_warnings(${name})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS headers)
  if(arg_NVCC)
    target_link_libraries(${name} PRIVATE CUDA::cudart)
    add_dependencies(gpu ${name})
    set_tests_properties(${name} PROPERTIES LABELS "headers;gpu")
  endif()
endfunction()
