// The NCCL process group. A library of its own (scripts/libtorch-nccl), because it needs torch's CUDA part, which most machines that build
// this do not have; group.cpp loads it when NCCL is asked for.
#define USE_C10D_NCCL 1
#include "group.hpp"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "shim.hpp"

// Joins the group through `store`; `out` is a c10::intrusive_ptr to fill in.
extern "C" char* fr_nccl_join(c10d::Store* store, int rank, int world, int64_t timeout_ms, void* out) {
  return fuelrail::guarded([&] {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = std::chrono::milliseconds(timeout_ms);
    auto shared = c10::intrusive_ptr<c10d::Store>::reclaim_copy(store);
    *static_cast<c10::intrusive_ptr<fuelrail::Backend>*>(out) =
        c10::make_intrusive<c10d::ProcessGroupNCCL>(shared, rank, world, options);
  });
}
