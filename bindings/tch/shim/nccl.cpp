// The NCCL process group. A library of its own (scripts/libtorch-nccl), because it needs torch's CUDA part, which most machines that build
// this do not have; group.cpp loads it when NCCL is asked for.
#define USE_C10D_NCCL 1
#include "group.hpp"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>

#include "shim.hpp"

// Joins the group through `store`; `out` is a c10::intrusive_ptr to fill in.
extern "C" char* fr_nccl_join(c10d::Store* store, int rank, int world, int64_t timeout_ms, void* out) {
  return fuelrail::guarded([&] {
    // Torch's watchdog ends the process when a rank is lost. Here `finish` notices, and the process says so and ends by itself.
    for (const char* off : {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_DUMP_ON_TIMEOUT"}) setenv(off, "0", 0);
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = std::chrono::milliseconds(timeout_ms);
    auto shared = c10::intrusive_ptr<c10d::Store>::reclaim_copy(store);
    *static_cast<c10::intrusive_ptr<fuelrail::Backend>*>(out) =
        c10::make_intrusive<c10d::ProcessGroupNCCL>(shared, rank, world, options);
  });
}

// Ends the group's communicators: a destructor that has to would end the process, too.
extern "C" void fr_nccl_end(fuelrail::Backend& backend, bool at_once) {
  auto& nccl = static_cast<c10d::ProcessGroupNCCL&>(backend);
  if (at_once) nccl.abort();
  else nccl.shutdown();
}
