# SPDX-License-Identifier: Apache-2.0
include_guard()

# gradlane_warnings(<target>): the warnings under which all of our own code is clean. Whether they
# are errors is CMAKE_COMPILE_WARNING_AS_ERROR's business, which the presets for developers set.
function(gradlane_warnings target)
  target_compile_options(
    ${target}
    PRIVATE
      $<$<COMPILE_LANG_AND_ID:CXX,GNU,Clang>:
      -Wall
      -Wextra
      -Wpedantic
      -Wshadow
      -Wconversion
      -Wsign-conversion
      -Wold-style-cast
      -Wundef
      -Wnon-virtual-dtor
      -Woverloaded-virtual
      -Wextra-semi
      -Wnull-dereference
      -Wdouble-promotion>
      $<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Xcompiler=-Wall,-Wextra,-Wconversion,-Wshadow>
  )
endfunction()
