# SPDX-License-Identifier: Apache-2.0
include_guard()

# gradlane_mpiexec(<variable> <ranks> <target>): the command line that runs a program on n ranks,
# each under the target's emulator where it has one.
function(gradlane_mpiexec variable ranks target)
  get_target_property(emulator ${target} CROSSCOMPILING_EMULATOR)
  if(NOT emulator)
    set(emulator "")
  endif()
  set(${variable}
    ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${MPIEXEC_PREFLAGS}
    ${emulator} $<TARGET_FILE:${target}> ${MPIEXEC_POSTFLAGS}
    PARENT_SCOPE
  )
endfunction()

# gradlane_add_ranks_test(<name> <ranks> <target>): a test that passes when all ranks return 0. It
# finds <ranks> in the environment too, to tell an mpiexec that starts n worlds of one rank.
function(gradlane_add_ranks_test name ranks target)
  gradlane_mpiexec(command ${ranks} ${target})
  add_test(NAME ${name} COMMAND ${command})
  set_tests_properties(${name} PROPERTIES PROCESSORS ${ranks} ENVIRONMENT GRADLANE_TEST_RANKS=${ranks})
endfunction()
