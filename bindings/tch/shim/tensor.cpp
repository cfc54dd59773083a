// Tensors over memory that is not torch's, with the deleter that tch's from_blob lacks.
#include <ATen/ATen.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

#include <memory>

#include "device.hpp"
#include "shim.hpp"

using fuelrail::device_of;
using fuelrail::guarded;

extern "C" {
void fr_text_free(char* text) { std::free(text); }

// A dense tensor over `memory`; `release(context)` is called once, by whichever thread drops the last tensor, view or graph that
// refers to it. When this fails, `release` is not called.
char* fr_tensor_over(void* memory, const int64_t* sizes, size_t dimensions, int kind, int cuda, void (*release)(void*), void* context, at::Tensor** out) {
  return guarded([&] {
    auto options = at::TensorOptions().dtype(static_cast<at::ScalarType>(kind)).device(device_of(cuda));
    // Torch calls the deleter, too, when it fails halfway; the context is the caller's until the tensor is made.
    auto made = std::make_shared<bool>(false);
    *out = new at::Tensor(at::from_blob(
        memory, at::IntArrayRef(sizes, dimensions), [release, context, made](void*) { if (*made) release(context); }, options));
    *made = true;
  });
}

// The CUDA stream torch works on now, as the driver names it; null is the default stream.
char* fr_current_stream(int cuda, void** out) {
  return guarded([&] {
    c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
    c10::Stream stream = guard.getStream(device_of(cuda));
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 11)
    *out = guard.getStreamNativeHandle(stream);
#else
    // Streams of torch's own pool have their kind in the lowest bits; external ones are named by their handle, which is aligned, the default one by zero.
    TORCH_CHECK((stream.id() & 7) == 0, "torch works on a stream of its own pool, whose handle this libtorch does not tell");
    *out = reinterpret_cast<void*>(stream.id());
#endif
  });
}
}
