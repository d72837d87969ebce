# SPDX-License-Identifier: Apache-2.0
# The model's operations on a GPU.
gradlane_test(bert/row_groups_test.cpp LINK gradlane_bert)
gradlane_test(bert/cuda_prefetch_test.cpp LINK gradlane::cuda gradlane_bert_cuda SCHEDULES 20)
gradlane_test(bert/cuda_operations_test.cpp LINK gradlane::cuda gradlane_bert_cuda)
gradlane_test(bert/cuda_attention_test.cpp LINK gradlane::cuda gradlane_bert_cuda)
gradlane_test(bert/cuda_loss_scaler_test.cpp LINK gradlane::cuda gradlane_bert_cuda)
if(OpenMP_CXX_FOUND)
  gradlane_test(
    bert/cuda_optimizer_test.cpp LINK gradlane::cuda gradlane_bert_cuda gradlane_bert_training
  )
endif()
if(dnnl_FOUND AND OpenMP_CXX_FOUND)
  gradlane_test(
    bert/cuda_model_test.cpp LINK gradlane::cuda gradlane_bert_cuda gradlane_bert_cpu
  )
  gradlane_test(
    bert/cuda_training_test.cu LINK gradlane_bert_cuda gradlane_bert_cpu gradlane_bert_training
  )
  gradlane_test(
    bert/cuda_trainer_test.cu
    LINK gradlane::nccl gradlane_bert_cuda gradlane_bert_cpu gradlane_bert_training
    RANKS 1 4
  )
  gradlane_test(bert/cuda_trainer_test.cu LINK gradlane::nccl RANKS 2 SCHEDULES 3)
  foreach(name cuda_training_test cuda_trainer_test)
    if(TARGET bert_${name})
      target_compile_options(
        bert_${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${OpenMP_CXX_FLAGS}>
      )
    endif()
  endforeach()
endif()

if(gradlane_nvcc)
  set(kernels norms.cu pointwise.cu cross_entropy.cu optimizer.cu)
  list(TRANSFORM kernels PREPEND ${PROJECT_SOURCE_DIR}/examples/bert/cuda/)
  add_test(
    NAME bert_cuda_spills_test
    COMMAND
      ${CMAKE_CURRENT_LIST_DIR}/cuda_spills_test.sh ${CMAKE_CUDA_COMPILER}
      ${PROJECT_SOURCE_DIR}/include ${kernels}
  )
  set_tests_properties(bert_cuda_spills_test PROPERTIES LABELS "bert;gpu" TIMEOUT 600)
endif()
if(gradlane_nvcc AND GRADLANE_PTXSIM)
  add_executable(bert_cuda_traffic cuda_traffic.cpp)
  gradlane_warnings(bert_cuda_traffic)
  target_link_libraries(bert_cuda_traffic PRIVATE gradlane_doctest_main gradlane_bert_cuda)
  add_dependencies(gpu bert_cuda_traffic)
  add_test(
    NAME bert_cuda_traffic_test
    COMMAND
      ${CMAKE_CURRENT_LIST_DIR}/cuda_traffic_test.sh ${GRADLANE_PTXSIM}
      $<TARGET_FILE:bert_cuda_traffic>
  )
  set_tests_properties(bert_cuda_traffic_test PROPERTIES LABELS "bert;gpu" TIMEOUT 300)
endif()
