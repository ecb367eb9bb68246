#include "kernels/cuda/rms_norm.cuh"

namespace troupe::kernels::cuda {
namespace {

constexpr int threads = 256;
constexpr int warp_lanes = 32;
constexpr int warps = threads / warp_lanes;

// The sum of one value a thread over the block, the same on every thread and in
// the order that the header promises.
__device__ float block_sum(float value) {
  __shared__ float sums[warps];
  for (int step = warp_lanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffU, value, step);
  if (threadIdx.x % warp_lanes == 0) sums[threadIdx.x / warp_lanes] = value;
  __syncthreads();
  float total = 0;
  for (int warp = 0; warp < warps; ++warp) total += sums[warp];
  return total;
}

// One block a row. x and out may be the same: each thread reads an element
// before it writes it, and all of the row's squares are summed before any is
// written.
__global__ void rms_norm_kernel(const float* x, const float* __restrict__ weight, float* out, int width, float eps) {
  const size_t first = static_cast<size_t>(blockIdx.x) * static_cast<size_t>(width);
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += threads) {
    const float value = x[first + static_cast<size_t>(i)];
    squares = __fmaf_rn(value, value, squares);
  }
  const float mean = __fdiv_rn(block_sum(squares), static_cast<float>(width));
  // Division and square root rounded as IEEE 754 says; rsqrtf is only
  // approximate.
  const float inverse = __frcp_rn(__fsqrt_rn(__fadd_rn(mean, eps)));
  for (int i = static_cast<int>(threadIdx.x); i < width; i += threads) {
    const size_t at = first + static_cast<size_t>(i);
    out[at] = __fmul_rn(__fmul_rn(x[at], inverse), weight[i]);
  }
}

}  // namespace

status checked(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return {};
  return {code, std::string(what) + ": " + cudaGetErrorName(code) + " (" + cudaGetErrorString(code) + ")"};
}

status rms_norm(const float* x, const float* weight, float* out, int rows, int width, float eps, cudaStream_t stream) {
  if (rows < 0 || width < 1 || x == nullptr || weight == nullptr || out == nullptr)
    return checked(cudaErrorInvalidValue, "rms_norm's arguments");
  if (rows == 0) return {};
  rms_norm_kernel<<<static_cast<unsigned>(rows), threads, 0, stream>>>(x, weight, out, width, eps);
  return checked(cudaGetLastError(), "launch of rms_norm");
}

}  // namespace troupe::kernels::cuda
