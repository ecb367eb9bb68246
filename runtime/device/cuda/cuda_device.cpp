#include "runtime/device/cuda/cuda_device.hpp"

#include "kernels/cuda/rms_norm.cuh"

namespace troupe {

namespace {

result<void> checked(cudaError_t code, const char* what) {
  const auto said = kernels::cuda::checked(code, what);
  if (said) return {};
  return error{errc::unsupported, said.message};
}

void tell_completed(void* task) { static_cast<stage_task*>(task)->completed({}); }

}  // namespace

void cuda_stage::run(worker_team&) { TROUPE_CHECK(false, "a CUDA stage was submitted to a device without CUDA"); }

result<std::unique_ptr<cuda_device>> cuda_device::make(int ordinal) {
  cudaDeviceProp properties{};
  if (auto found = checked(cudaGetDeviceProperties(&properties, ordinal), "looking for a GPU"); !found)
    return found.failure();
  std::unique_ptr<cuda_device> made(new cuda_device);
  made->ordinal_ = ordinal;
  made->math_ = kernels::compute::make(kernels::profile::f32);
  made->description_ = std::string("cuda, ") + properties.name;
  if (auto set = checked(cudaSetDevice(ordinal), "choosing the GPU"); !set) return set.failure();
  if (auto created = checked(cudaStreamCreateWithFlags(&made->stream_, cudaStreamNonBlocking), "making a stream");
      !created)
    return created.failure();
  return made;
}

cuda_device::~cuda_device() {
  stop();
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void cuda_device::submit(stage_task& task) {
  auto* stage = dynamic_cast<cuda_stage*>(&task);
  TROUPE_CHECK(stage != nullptr, "a CUDA device was given a stage that only runs on CPUs");
  if (stopping_) return;
  ++stages_;
  auto enqueued = stage->enqueue(stream_);
  if (enqueued) enqueued = checked(cudaLaunchHostFunc(stream_, tell_completed, &task), "asking for a completion");
  TROUPE_CHECK(enqueued, enqueued ? "" : enqueued.failure().message);
}

void cuda_device::submit(const expert_task&) {
  TROUPE_CHECK(false, "grouped expert launches have no CUDA kernels yet");
}

void cuda_device::stop() {
  stopping_ = true;
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
}

device_statistics cuda_device::statistics() const {
  device_statistics statistics;
  statistics.stages = stages_;
  return statistics;
}

}  // namespace troupe
