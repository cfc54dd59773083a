// A process group with the store it met through.
#pragma once
#include <torch/version.h>
#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#else
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif
#include <torch/csrc/distributed/c10d/Store.hpp>

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
};

// Works of gloo's groups of one process begin one at a time: torch's flight recorder (2.11) puts a group that it has not seen into a map of the
// process without a lock. NCCL's are not held up: their first may wait for ranks in this process.
std::unique_lock<std::mutex> turn_to_begin(const Group& group);

template <class Begin>
auto begun(const Group& group, Begin begin) {
  auto turn = turn_to_begin(group);
  return begin(*group.backend);
}
}  // namespace fuelrail
