// libtorch's own c10d: the store that ranks meet at, the gloo and NCCL groups, collectives and point-to-point.
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO 1
#endif
#include "group.hpp"

#include <dlfcn.h>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "shim.hpp"

using fuelrail::begun;
using fuelrail::Group;
using fuelrail::guarded;

std::unique_lock<std::mutex> fuelrail::turn_to_begin(const Group& group) {
  static std::mutex turns;
  bool gloo = dynamic_cast<const c10d::ProcessGroupGloo*>(group.backend.get()) != nullptr;
  return gloo ? std::unique_lock<std::mutex>(turns) : std::unique_lock<std::mutex>();
}

void fuelrail::finish(const Group& group, const c10::intrusive_ptr<Work>& work) {
  if (!work) return;
  auto end = std::chrono::steady_clock::now() + group.timeout;
  while (group.end && !work->isCompleted()) {
    TORCH_CHECK(std::chrono::steady_clock::now() < end, "the other ranks did not come within ", group.timeout.count(), " ms");
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  if (auto failed = work->exception()) std::rethrow_exception(failed);
  work->wait();
}

namespace {
using MakeNccl = char* (*)(c10d::Store*, int, int, int64_t, void*);
using EndNccl = void (*)(fuelrail::Backend&, bool);

// Begins something over a tensor and waits for it. What the group works on outlives the work.
template <class Begin>
char* over(Group* group, const at::Tensor& tensor, Begin begin) {
  return guarded([&] {
    std::vector<at::Tensor> tensors{tensor};
    finish(*group, begun(*group, [&](auto& backend) { return begin(backend, tensors); }));
  });
}
}  // namespace

extern "C" {
// Meets the other ranks at host:port and joins them. `serve`: this rank keeps the store. `interface` or `address`: ours, for gloo's connections;
// with neither, gloo takes the host's name. `prefix` keeps this start apart from earlier ones at the same store.
char* fr_group_join(const char* backend, const char* host, uint16_t port, bool serve, int rank, int world, const char* prefix, const char* address, const char* interface, int64_t timeout_ms, Group** out) {
  return guarded([&] {
    auto timeout = std::chrono::milliseconds(timeout_ms);
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = serve;
    options.numWorkers = world;
    options.waitWorkers = false;
    options.timeout = timeout;
    c10::intrusive_ptr<c10d::Store> met = c10::make_intrusive<c10d::TCPStore>(std::string(host), options);
    met->setTimeout(timeout);
    auto store = c10::make_intrusive<c10d::PrefixStore>(std::string(prefix), met);
    c10::intrusive_ptr<fuelrail::Backend> joined;
    EndNccl end = nullptr;
    if (std::string(backend) == "nccl") {
      // In a library of its own, because it needs torch's CUDA part, which most machines that build this do not have.
      void* library = dlopen("libfuelrail_tch_nccl.so", RTLD_NOW | RTLD_GLOBAL);
      TORCH_CHECK(library, "NCCL is asked for, but ", dlerror(), "; build it with scripts/libtorch-nccl");
      auto make = reinterpret_cast<MakeNccl>(dlsym(library, "fr_nccl_join"));
      end = reinterpret_cast<EndNccl>(dlsym(library, "fr_nccl_end"));
      TORCH_CHECK(make && end, "libfuelrail_tch_nccl.so is not ours, or of another version: build it with scripts/libtorch-nccl");
      char* failed = make(store.get(), rank, world, timeout_ms, &joined);
      std::string why = failed ? failed : "";
      std::free(failed);
      TORCH_CHECK(why.empty(), why);
    } else {
      auto settings = c10d::ProcessGroupGloo::Options::create(timeout);
      settings->devices.push_back(
          interface ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
          : address ? c10d::ProcessGroupGloo::createDeviceForHostname(address)
                    : c10d::ProcessGroupGloo::createDefaultDevice());
      settings->threads = 2;
      joined = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, world, settings);
    }
    *out = new Group{store, joined, timeout, end, {}};
  });
}
void fr_group_free(Group* group) {
  // What does not end now waits for a rank that is lost.
  if (group->end) std::free(guarded([&] { group->end(*group->backend, group->last && !group->last->isCompleted()); }));
  delete group;
}

char* fr_all_reduce(Group* group, at::Tensor* tensor) {
  return over(group, *tensor, [](auto& backend, auto& tensors) { return backend.allreduce(tensors); });
}
char* fr_broadcast(Group* group, at::Tensor* tensor, int root) {
  return over(group, *tensor, [&](auto& backend, auto& tensors) {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return backend.broadcast(tensors, options);
  });
}
// `out` has the shape of `tensor` with the number of ranks before it.
char* fr_all_gather(Group* group, at::Tensor* tensor, at::Tensor* out) {
  std::vector<std::vector<at::Tensor>> outputs;
  return over(group, *tensor, [&](auto& backend, auto& tensors) {
    outputs.push_back(out->unbind(0));
    return backend.allgather(outputs, tensors);
  });
}
char* fr_barrier(Group* group) {
  return guarded([&] { finish(*group, begun(*group, [&](auto& backend) { return backend.barrier(); })); });
}
char* fr_send(Group* group, at::Tensor* tensor, int to, int tag) {
  return over(group, *tensor, [&](auto& backend, auto& tensors) { return backend.send(tensors, to, tag); });
}
char* fr_receive(Group* group, at::Tensor* tensor, int from, int tag) {
  return over(group, *tensor, [&](auto& backend, auto& tensors) { return backend.recv(tensors, from, tag); });
}
}
