# SPDX-License-Identifier: Apache-2.0
# Configures `project` in a new folder `binary`; then builds, tests and installs it, unless a regex
# `fails` says how configuring must fail.
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
  message("${output}")
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed: ${ARGN}")
  endif()
endfunction()

file(REMOVE_RECURSE ${binary})
set(configure ${CMAKE_COMMAND} -S ${project} -B ${binary} ${arguments})
if(NOT fails)
  run(${configure})
  run(${CMAKE_COMMAND} --build ${binary})
  run(${CMAKE_CTEST_COMMAND} --test-dir ${binary} --output-on-failure --no-tests=error)
  if(arguments MATCHES "CMAKE_INSTALL_PREFIX")
    run(${CMAKE_COMMAND} --install ${binary})
  endif()
  return()
endif()

execute_process(COMMAND ${configure} OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
message("${output}")
string(REGEX REPLACE "[ \n]+" " " words "${output}")  # CMake breaks the lines of its messages
if(result EQUAL 0 OR NOT words MATCHES "${fails}")
  message(FATAL_ERROR "configuring should have failed with: ${fails}")
endif()
