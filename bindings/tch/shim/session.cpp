// What a training session needs of torch's global state and tch does not offer alike in all its versions: random state, autocast.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <dlfcn.h>
#include <torch/version.h>

#include "device.hpp"
#include "shim.hpp"

using fuelrail::device_of;
using fuelrail::guarded;
using fuelrail::text_of;

extern "C" {
char* fr_torch_version() { return text_of(TORCH_VERSION); }

// Loads torch's CUDA part, if there is one. Must come before the first call that asks for CUDA: torch asks once and remembers.
char* fr_load_cuda() { return dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) ? nullptr : text_of(dlerror()); }

// The state of the default generator of the CPU, or of a CUDA device, as a byte tensor.
char* fr_random_state(int cuda, at::Tensor** out) {
  return guarded([&] {
    at::Generator generator = at::globalContext().defaultGenerator(device_of(cuda));
    std::lock_guard<std::mutex> lock(generator.mutex());
    *out = new at::Tensor(generator.get_state());
  });
}
char* fr_random_state_set(int cuda, const at::Tensor* state) {
  return guarded([&] {
    at::Generator generator = at::globalContext().defaultGenerator(device_of(cuda));
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(*state);
  });
}

// Turns autocast on for the device's operations until fr_autocast_off. `kind` is a ScalarType.
char* fr_autocast_on(int cuda, int kind) {
  return guarded([&] {
    auto type = static_cast<at::ScalarType>(kind);
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
    auto device = cuda ? at::kCUDA : at::kCPU;
    at::autocast::set_autocast_dtype(device, type);
    at::autocast::set_autocast_enabled(device, true);
#else
    if (cuda) {
      at::autocast::set_autocast_gpu_dtype(type);
      at::autocast::set_enabled(true);
    } else {
      at::autocast::set_autocast_cpu_dtype(type);
      at::autocast::set_cpu_enabled(true);
    }
#endif
    // Last: what throws before leaves nothing to undo.
    at::autocast::increment_nesting();
  });
}
void fr_autocast_off(int cuda) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
  at::autocast::set_autocast_enabled(cuda ? at::kCUDA : at::kCPU, false);
#else
  if (cuda) at::autocast::set_enabled(false);
  else at::autocast::set_cpu_enabled(false);
#endif
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
}
}
