# SPDX-License-Identifier: Apache-2.0
# The model's operations on a GPU.
gradlane_test(bert/cuda_operations_test.cpp LINK gradlane::cuda gradlane_bert_cuda)
if(OpenMP_CXX_FOUND)
  gradlane_test(
    bert/cuda_optimizer_test.cpp LINK gradlane::cuda gradlane_bert_cuda gradlane_bert_training
  )
endif()
if(dnnl_FOUND AND OpenMP_CXX_FOUND)
  gradlane_test(
    bert/cuda_model_test.cpp LINK gradlane::cuda gradlane_bert_cuda gradlane_bert_cpu
  )
endif()
