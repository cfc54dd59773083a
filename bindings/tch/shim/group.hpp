// A process group with the store it met through.
#pragma once
#include <torch/version.h>
#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#else
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <mutex>
#include <utility>

namespace fuelrail {
// What gloo's and NCCL's groups derive from, and the works they give out: both were renamed and moved on the way from torch 1 to 2.
#if TORCH_VERSION_MAJOR >= 2
using Backend = c10d::Backend;
#else
using Backend = c10d::ProcessGroup;
#endif
using Work = decltype(std::declval<Backend&>().barrier())::element_type;

struct Group {
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<Backend> backend;
  std::chrono::milliseconds timeout;
  // Ends NCCL's communicators: in good order, or at once where ranks are lost. Null for gloo, which needs no end.
  void (*end)(Backend&, bool at_once) = nullptr;
  // What was begun last.
  mutable c10::intrusive_ptr<Work> last;
};

// Waits for a work. NCCL's runs on the device, and its own wait would return at once, or end the process when a rank is lost: so it is watched, and
// one that does not end in time is an error. Null is nothing to wait for.
void finish(const Group& group, const c10::intrusive_ptr<Work>& work);

// Works of gloo's groups of one process begin one at a time: torch's flight recorder (2.11) puts a group that it has not seen into a map of the
// process without a lock. NCCL's are not held up: their first may wait for ranks in this process.
std::unique_lock<std::mutex> turn_to_begin(const Group& group);

template <class Begin>
auto begun(const Group& group, Begin begin) {
  auto turn = turn_to_begin(group);
  auto work = begin(*group.backend);
  if (group.end) group.last = work;
  return work;
}
}  // namespace fuelrail
