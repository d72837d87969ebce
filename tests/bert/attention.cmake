# SPDX-License-Identifier: Apache-2.0
# The attention kernels, which with their own test lie in a folder that can be taken away.
set(attention ${PROJECT_SOURCE_DIR}/examples/bert/attention)
gradlane_test(bert/work_list_test.cpp LINK gradlane_bert)
gradlane_test(bert/attention_test.cu SOURCE ${attention}/attention_test.cu)
if(dnnl_FOUND AND OpenMP_CXX_FOUND)
  gradlane_test(bert/attention_on_cpu_test.cu LINK gradlane_bert_cpu)
  if(TARGET bert_attention_on_cpu_test)
    target_compile_options(
      bert_attention_on_cpu_test PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${OpenMP_CXX_FLAGS}>
    )
  endif()
endif()

if(gradlane_nvcc)
  add_test(
    NAME bert_attention_spills_test
    COMMAND
      ${CMAKE_CURRENT_LIST_DIR}/attention_spills_test.sh ${CMAKE_CUDA_COMPILER}
      ${attention}/attention_test.cu
  )
  set_tests_properties(bert_attention_spills_test PROPERTIES LABELS "bert;gpu" TIMEOUT 300)
endif()
if(gradlane_nvcc AND GRADLANE_PTXSIM)
  add_test(
    NAME bert_attention_costs_test
    COMMAND
      ${CMAKE_CURRENT_LIST_DIR}/attention_costs_test.sh ${GRADLANE_PTXSIM}
      $<TARGET_FILE:bert_attention_test>
  )
  set_tests_properties(bert_attention_costs_test PROPERTIES LABELS "bert;gpu" TIMEOUT 300)
endif()
