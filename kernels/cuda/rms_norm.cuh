// RMSNorm on CUDA devices.
//
// out[row][i] = x[row][i] * rsqrt(mean over i of x[row][i]^2 + eps) * weight[i], all FP32 (MODEL.md 6.1).
//
// A row's sum of squares has one order that depends on `width` alone: thread t of 256 takes the indices that leave t
// modulo 256, ascending; 32 lanes add in the butterfly order 16, 8, 4, 2, 1; then the 8 warps in ascending
// order. So a row has the same bits alone and in any batch. These are profile cuda_sm90's bits, not those of profile
// f32, which sums in 16 lanes.
#pragma once

#include <cuda_runtime.h>

#include <string>

namespace troupe::kernels::cuda {

// What a CUDA call said. `message` is empty on success.
struct status {
  cudaError_t code = cudaSuccess;
  std::string message;

  explicit operator bool() const { return code == cudaSuccess; }
};

// The one place where CUDA's error codes become words. `what` names the call for the message.
status checked(cudaError_t code, const char* what);

// Launches on `stream`; the result is there when the stream has run.
//
// x [rows, width], weight [width], out [rows, width]: FP32 device memory, row-major and tight. x and out may be the
// same. Fails: with cudaErrorInvalidValue for a negative number of rows, a width below 1 or a null pointer; with the
// launch's error otherwise.
status rms_norm(const float* x, const float* weight, float* out, int rows, int width, float eps, cudaStream_t stream);

}  // namespace troupe::kernels::cuda
