# SPDX-License-Identifier: Apache-2.0
include_guard()
include(gradlane_warnings)

# gradlane_header_tests(<component> HEADERS <path below include/>...)
#
# One program that proves that each header compiles alone, may be included twice, and may be linked
# twice: a source file per header that includes nothing else, and two that include all headers, so
# that whatever a header forgets to make inline is defined at least three times.
function(gradlane_header_tests component)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "HEADERS")
  set(name headers_${component}_test)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${component})
  set(all "")
  set(sources ${CMAKE_CURRENT_SOURCE_DIR}/main.cpp)
  foreach(header IN LISTS arg_HEADERS)
    set(source ${folder}/${header}.cpp)
    set(include "#include <${header}>\n")
    file(CONFIGURE OUTPUT ${source} CONTENT "${include}${include}" @ONLY)
    list(APPEND sources ${source})
    string(APPEND all "${include}")
  endforeach()
  foreach(unit first second)
    set(source ${folder}/${unit}.cpp)
    file(
      CONFIGURE
      OUTPUT ${source}
      CONTENT "${all}void const* ${unit}() { return &gradlane::no_deadline; }\n"
      @ONLY
    )
    list(APPEND sources ${source})
  endforeach()
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE gradlane::${component})
  gradlane_warnings(${name})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS headers)
endfunction()
