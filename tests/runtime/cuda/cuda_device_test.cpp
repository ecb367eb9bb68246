#include "runtime/device/cuda/cuda_device.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "kernels/cuda/rms_norm.cuh"

namespace troupe {
namespace {

struct norm_stage final : cuda_stage {
  float* x = nullptr;
  float* weight = nullptr;
  int rows = 0;
  int width = 0;
  std::atomic<int> done{0};

  result<void> enqueue(cudaStream_t stream) override {
    const auto said = kernels::cuda::rms_norm(x, weight, x, rows, width, 1e-6F, stream);
    if (said) return {};
    return error{errc::internal, said.message};
  }
  void completed(const stage_time&) override { ++done; }
  stage_label label() const override { return {}; }
  task_cost cost() const override { return {}; }
};

}  // namespace

TEST_CASE("a stage runs on the GPU's stream and completes; without a GPU the device says so") {
  auto device = cuda_device::make(0);
  if (!device) {
    MESSAGE("skipped: " << device.failure().message);
    CHECK(device.failure().code == errc::unsupported);
    CHECK(!device.failure().message.empty());
    return;
  }
  norm_stage stage;
  stage.rows = 3;
  stage.width = 300;
  std::vector<float> x(900), weight(300, 0.5F);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17) - 8.0F;
  REQUIRE(cudaMalloc(&stage.x, x.size() * 4) == cudaSuccess);
  REQUIRE(cudaMalloc(&stage.weight, weight.size() * 4) == cudaSuccess);
  cudaMemcpy(stage.x, x.data(), x.size() * 4, cudaMemcpyHostToDevice);
  cudaMemcpy(stage.weight, weight.data(), weight.size() * 4, cudaMemcpyHostToDevice);
  (*device)->submit(stage);
  for (int i = 0; i < 20000 && stage.done == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  REQUIRE(stage.done == 1);
  std::vector<float> out(900);
  cudaMemcpy(out.data(), stage.x, out.size() * 4, cudaMemcpyDeviceToHost);
  std::vector<float> expected(300);
  const auto math = kernels::compute::make(kernels::profile::f32);
  for (size_t row = 0; row < 3; ++row) {
    math->rms_norm(x.data() + row * 300, weight.data(), expected.data(), 300, 1e-6F);
    for (size_t i = 0; i < 300; ++i) CHECK(std::abs(out[row * 300 + i] - expected[i]) < 1e-5F);
  }
  cudaFree(stage.x);
  cudaFree(stage.weight);
}

}  // namespace troupe
