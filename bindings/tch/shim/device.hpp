// The number by which Rust names a device, as torch names it.
#pragma once
#include <ATen/ATen.h>

namespace fuelrail {
inline at::Device device_of(int cuda) { return cuda < 0 ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(cuda)); }
}  // namespace fuelrail
