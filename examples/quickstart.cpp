#include <gradlane/gradlane.hpp>

#include <iostream>

int main() {
  gradlane::local::run(2, [](auto& comm, auto& device) {  // two ranks, as threads
    auto buckets = gradlane::gradient_buckets{device, gradlane::bucket_plan{{{"weight", 2}}}};
    auto clip    = gradlane::clip::bucketwise{gradlane::threshold::equal{1.0}};
    auto reduce  = gradlane::clip_allreduce{buckets, comm, clip};
    auto compute = device.make_stream();

    reduce.begin(compute);
    auto const gradient = buckets.template gradient<float>(0);  // backward writes here ...
    gradient[0]         = comm.rank() == 0 ? 3.0F : 0.0F;
    gradient[1]         = comm.rank() == 0 ? 0.0F : 4.0F;
    reduce.ready(0, compute);  // ... and says so: norm, clip and all-reduce start now
    reduce.finish(compute);
    device.sync(compute);
    if (comm.rank() == 0) { std::cout << gradient[0] << ' ' << gradient[1] << '\n'; }
  });
}
