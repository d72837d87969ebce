# SPDX-License-Identifier: Apache-2.0
# Installs a copy of `source` with and without MPI, CUDA and NCCL, compares the two, moves one to ${work}/moved and
# removes what it came from.
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN}\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${work})
foreach(part CMakeLists.txt LICENSE cmake include)
  file(COPY ${source}/${part} DESTINATION ${work}/source)
endforeach()
set(parts -DGRADLANE_TESTS=OFF -DGRADLANE_EXAMPLES=OFF -DGRADLANE_BENCH=OFF)
foreach(variant with without)
  set(dependencies -DCMAKE_DISABLE_FIND_PACKAGE_MPI=OFF -DGRADLANE_CUDA=ON)
  if(variant STREQUAL "without")
    set(dependencies -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON -DGRADLANE_CUDA=OFF)
  endif()
  run(
    ${CMAKE_COMMAND} -S ${work}/source -B ${work}/build_${variant} ${arguments} ${parts}
    ${dependencies}
  )
  run(${CMAKE_COMMAND} --install ${work}/build_${variant} --prefix ${work}/${variant})
endforeach()
run(diff -r ${work}/with ${work}/without)

file(GLOB_RECURSE files ${work}/with/*)
foreach(file IN LISTS files)
  file(READ ${file} text)
  foreach(path ${source} ${work} /usr /home /tmp)
    string(FIND "${text}" "${path}/" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${file} names the absolute path ${path}/")
    endif()
  endforeach()
endforeach()

file(RENAME ${work}/with ${work}/moved)
file(REMOVE_RECURSE ${work}/source ${work}/build_with ${work}/build_without ${work}/without)
