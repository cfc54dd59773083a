// Tensors over memory that is not torch's, with the deleter that tch's from_blob lacks.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "device.hpp"
#include "shim.hpp"

using fuelrail::device_of;
using fuelrail::guarded;

namespace {
// Numbers on their way to the host's memory.
struct Later {
  at::Tensor host;
  std::optional<c10::Event> there;
};
}  // namespace

extern "C" {
void fr_text_free(char* text) { std::free(text); }

// `tensor += factor * other`, rounded once, as torch's own optimisers do it; tch's `add_` has no factor.
char* fr_add_scaled(at::Tensor* tensor, const at::Tensor* other, double factor) {
  return guarded([&] { tensor->add_(*other, factor); });
}

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

// The same on a device, from page-locked memory, without waiting for the device; on the CPU the tensor itself.
char* fr_moved(const at::Tensor* tensor, int cuda, at::Tensor** out) {
  return guarded([&] {
    bool moves = cuda >= 0 && tensor->device().is_cpu();
    *out = new at::Tensor(moves ? tensor->pin_memory().to(device_of(cuda), /*non_blocking=*/true) : tensor->to(device_of(cuda)));
  });
}

// Starts a tensor's way to the host, after what its device is doing now; nobody waits.
char* fr_later_new(const at::Tensor* tensor, Later** out) {
  return guarded([&] {
    auto later = std::make_unique<Later>();
    if (tensor->device().is_cpu()) {
      later->host = tensor->detach().clone();
    } else {
      later->host = tensor->detach().to(at::kCPU, /*non_blocking=*/true);  // into page-locked memory
      c10::impl::VirtualGuardImpl guard(tensor->device().type());
      later->there.emplace(tensor->device().type());
      later->there->record(guard.getStream(tensor->device()));
    }
    *out = later.release();
  });
}
void fr_later_free(Later* later) { delete later; }

// Waits until they are there, `timeout_ms` at most, and writes them out.
char* fr_later_read(Later* later, int64_t timeout_ms, double* out, size_t length) {
  return guarded([&] {
    auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    while (later->there && !later->there->query()) {
      TORCH_CHECK(std::chrono::steady_clock::now() < end, "the device did not come to the end of a step within ", timeout_ms, " ms");
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    TORCH_CHECK(later->host.numel() == static_cast<int64_t>(length), length, " numbers are read and ", later->host.numel(), " were sent");
    at::from_blob(out, {static_cast<int64_t>(length)}, at::kDouble).copy_(later->host);
  });
}
}
