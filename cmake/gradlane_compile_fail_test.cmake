# SPDX-License-Identifier: Apache-2.0
include_guard()

# gradlane_compile_fail_test(<path>.cpp MESSAGE <regex> [LINK <target>...])
#
# A misuse that the compiler must refuse with a message that matches. The path is relative to
# tests/. The file holds the right use too, under #ifdef GRADLANE_RIGHT_USE: the test "<name>.right"
# compiles it so, lest a wrong include path pass for a refusal.
function(gradlane_compile_fail_test path)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "MESSAGE" "LINK")
  if(NOT arg_MESSAGE)
    message(FATAL_ERROR "gradlane_compile_fail_test(${path}): MESSAGE is missing")
  endif()
  string(REGEX REPLACE "\\.cpp$" "" name ${path})
  string(REPLACE "/" "_" name ${name})
  if("gradlane::mpi" IN_LIST arg_LINK AND NOT MPI_CXX_FOUND)
    message(STATUS "test ${name}: skipped, no MPI")
    return()
  endif()
  set(command ${CMAKE_CXX_COMPILER} -std=c++20 -fsyntax-only)
  foreach(target IN LISTS arg_LINK ITEMS gradlane::core)
    set(folders $<TARGET_PROPERTY:${target},INTERFACE_INCLUDE_DIRECTORIES>)
    list(APPEND command "$<$<BOOL:${folders}>:-I$<JOIN:${folders},$<SEMICOLON>-I>>")
  endforeach()
  set(source ${gradlane_tests_dir}/${path})
  add_test(NAME ${name} COMMAND ${command} ${source} COMMAND_EXPAND_LISTS)
  add_test(NAME ${name}.right COMMAND ${command} -DGRADLANE_RIGHT_USE ${source} COMMAND_EXPAND_LISTS)
  set_tests_properties(${name} PROPERTIES PASS_REGULAR_EXPRESSION "${arg_MESSAGE}")
  set_tests_properties(${name} ${name}.right PROPERTIES LABELS compile_fail ENVIRONMENT LC_ALL=C)
endfunction()
