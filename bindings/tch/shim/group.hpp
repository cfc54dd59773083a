// A process group with the store it met through.
#pragma once
#if __has_include(<torch/csrc/distributed/c10d/Backend.hpp>)
#include <torch/csrc/distributed/c10d/Backend.hpp>
#else
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace fuelrail {
#if __has_include(<torch/csrc/distributed/c10d/Backend.hpp>)
using Backend = c10d::Backend;
using Work = c10d::Work;
#else
using Backend = c10d::ProcessGroup;
using Work = c10d::ProcessGroup::Work;
#endif

struct Group {
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<Backend> backend;
};
}  // namespace fuelrail
