// Sums gradients over the ranks while the backward pass still runs.
//
// Parameters and gradients of the whole model lie in one flat tensor each, the last layer's first, because that is the order in which
// gradients come; every parameter begins at a multiple of 64 bytes. A bucket is a stretch of the gradients. When the last gradient of a
// bucket has been accumulated, the bucket is handed to the group; buckets go in the same order on every rank, because a group matches
// collectives by order. Gradients are accumulated where they lie, so nothing is copied in or out, and an optimiser needs a few operations
// instead of a few per parameter. After the last gradient lies a tail of the caller's own numbers, summed with them: counts and losses
// need no collective of their own. (Buckets: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.)
#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <chrono>
#include <mutex>

#include "group.hpp"
#include "shim.hpp"

using fuelrail::Group;
using fuelrail::guarded;

namespace {
using Clock = std::chrono::steady_clock;

struct Bucket {
  at::Tensor flat;                // its stretch of the gradients; the last one's includes the tail
  std::vector<size_t> parameters;
  size_t missing = 0;             // gradients of this pass that have not come yet
  c10::intrusive_ptr<fuelrail::Work> work;
};

struct Hook : torch::autograd::FunctionPostHook {
  Hook(std::function<void()> act) : act(std::move(act)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) override {
    act();
    return outputs;
  }
  std::function<void()> act;
};

// Outlives nothing it hooks: hooks hold it weakly through a shared flag.
struct Reducer {
  Group* group;
  std::vector<at::Tensor> parameters;
  at::Tensor flat_parameters;     // all of them; each parameter is a view of it
  at::Tensor flat_gradients;      // likewise, and the tail after them
  std::vector<size_t> offsets;    // where each begins, elements
  std::vector<at::Tensor> views;  // the place of each gradient
  std::vector<size_t> bucket_of;
  std::vector<Bucket> buckets;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators;
  std::vector<bool> come;
  at::Tensor tail;
  std::mutex mutex;               // a device's backward pass runs on a thread of torch's
  bool armed = false;
  size_t next = 0;                // buckets before this one have been handed over
  std::string failed;             // the first thing that went wrong; no step begins after it
  std::shared_ptr<bool> alive = std::make_shared<bool>(true);

  void launch(Bucket& bucket) {
    std::vector<at::Tensor> tensors{bucket.flat};
    if (group) bucket.work = begun(*group, [&](auto& backend) { return backend.allreduce(tensors); });
  }

  // The last one, too: the tail lies in it since the step was armed.
  void launch_complete() {
    while (next < buckets.size() && buckets[next].missing == 0) launch(buckets[next++]);
  }

  void gradient_came(size_t index) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!armed || come[index] || !failed.empty()) return;
    try {
      place(index);
      come[index] = true;
      buckets[bucket_of[index]].missing--;
      launch_complete();
    } catch (const std::exception& error) {
      failed = error.what();  // reported by finish: an exception must not cross the backward pass of other ranks' peers
    }
  }

  // Hands over what is left, unless something has failed.
  void launch_rest() {
    if (!failed.empty()) return;
    for (; next < buckets.size(); next++) {
      for (size_t index : buckets[next].parameters) place(index);
      launch(buckets[next]);
    }
  }

  // Waits for every bucket that was handed over, also when one fails: none is in flight after an error, so nobody writes the gradients any
  // more. Throws what the first one that failed said.
  void wait_for_all() {
    for (auto& bucket : buckets) {
      auto work = std::move(bucket.work);
      try {
        if (work) work->wait();
      } catch (const std::exception& error) {
        if (failed.empty()) failed = error.what();
      }
    }
    TORCH_CHECK(failed.empty(), failed);
  }

  // A gradient that autograd made elsewhere (it may replace ours by one of another layout) moves to its place.
  void place(size_t index) {
    at::NoGradGuard no_grad;
    at::Tensor& gradient = parameters[index].mutable_grad();
    if (!gradient.defined()) return;
    if (gradient.data_ptr() == views[index].data_ptr()) return;
    views[index].copy_(gradient);
    gradient = views[index];
  }
};

// Parameters begin at multiples of so many elements.
constexpr size_t kAlign = 16;

// Gives every parameter its place and its bucket; returns how many elements that takes.
size_t share_out(Reducer& reducer, size_t bucket_bytes, std::vector<size_t>& starts) {
  auto& parameters = reducer.parameters;
  reducer.bucket_of.resize(parameters.size());
  reducer.offsets.resize(parameters.size());
  size_t at = 0;
  for (size_t back = parameters.size(); back-- > 0;) {
    auto& parameter = parameters[back];
    TORCH_CHECK(parameter.dtype() == parameters[0].dtype() && parameter.device() == parameters[0].device(), "all parameters must be of one kind and on one device");
    size_t own = parameter.numel();
    if (starts.empty() || (at > starts.back() && (at - starts.back() + own) * parameter.element_size() > bucket_bytes)) {
      starts.push_back(at);
      reducer.buckets.emplace_back();
    }
    reducer.bucket_of[back] = reducer.buckets.size() - 1;
    reducer.buckets.back().parameters.push_back(back);
    reducer.offsets[back] = at;
    at += (own + kAlign - 1) / kAlign * kAlign;
  }
  return at;
}

void make_flat(Reducer& reducer, size_t bucket_bytes, size_t tail_length) {
  at::NoGradGuard no_grad;
  auto& parameters = reducer.parameters;
  std::vector<size_t> starts;
  size_t elements = share_out(reducer, bucket_bytes, starts);
  auto options = parameters[0].options().requires_grad(false);
  reducer.flat_parameters = at::zeros({static_cast<int64_t>(elements)}, options);
  reducer.flat_gradients = at::zeros({static_cast<int64_t>(elements + tail_length)}, options);
  reducer.tail = reducer.flat_gradients.narrow(0, elements, tail_length);
  for (size_t n = 0; n < starts.size(); n++) {
    size_t end = n + 1 < starts.size() ? starts[n + 1] : elements + tail_length;
    reducer.buckets[n].flat = reducer.flat_gradients.narrow(0, starts[n], end - starts[n]);
  }
  for (size_t n = 0; n < parameters.size(); n++) {
    auto& parameter = parameters[n];
    auto place = [&](at::Tensor& flat) { return flat.narrow(0, reducer.offsets[n], parameter.numel()).view(parameter.sizes()); };
    at::Tensor own = place(reducer.flat_parameters);
    own.copy_(parameter);
    parameter.set_data(own);
    reducer.views.push_back(place(reducer.flat_gradients));
  }
}
}  // namespace

extern "C" {
// `group` may be null: one rank, nothing to sum. Parameters in the order in which the forward pass uses them.
char* fr_reducer_new(Group* group, at::Tensor** parameters, size_t count, size_t bucket_bytes, size_t tail_length, Reducer** out) {
  return guarded([&] {
    TORCH_CHECK(count > 0, "a model without parameters cannot be trained");
    auto reducer = std::make_unique<Reducer>();
    reducer->group = group;
    for (size_t n = 0; n < count; n++) reducer->parameters.push_back(*parameters[n]);
    reducer->come.resize(count);
    make_flat(*reducer, bucket_bytes, tail_length);
    Reducer* self = reducer.get();
    for (size_t n = 0; n < count; n++) {
      auto accumulator = torch::autograd::impl::grad_accumulator(self->parameters[n]);
      std::weak_ptr<bool> alive = self->alive;
      accumulator->add_post_hook(std::make_unique<Hook>([self, n, alive] {
        if (!alive.expired()) self->gradient_came(n);
      }));
      self->accumulators.push_back(accumulator);
    }
    *out = reducer.release();
  });
}
void fr_reducer_free(Reducer* reducer) { delete reducer; }

size_t fr_reducer_buckets(const Reducer* reducer) { return reducer->buckets.size(); }

// Before the first backward pass of a step: gradients become zero.
char* fr_reducer_begin(Reducer* reducer) {
  return guarded([&] {
    std::lock_guard<std::mutex> lock(reducer->mutex);
    TORCH_CHECK(reducer->failed.empty(), "an earlier step has failed: ", reducer->failed);
    at::NoGradGuard no_grad;
    reducer->flat_gradients.zero_();
    for (size_t n = 0; n < reducer->parameters.size(); n++) reducer->parameters[n].mutable_grad() = reducer->views[n];
    reducer->armed = false;
    reducer->next = 0;
    std::fill(reducer->come.begin(), reducer->come.end(), false);
    for (auto& bucket : reducer->buckets) bucket.missing = bucket.parameters.size();
  });
}

// The flat tensor of all parameters, or of all gradients without the tail. Views: writing them writes the model.
char* fr_reducer_flat(Reducer* reducer, bool gradients, at::Tensor** out) {
  return guarded([&] {
    *out = new at::Tensor(gradients ? reducer->flat_gradients.narrow(0, 0, reducer->flat_parameters.numel()) : reducer->flat_parameters);
  });
}

// Before the last backward pass of a step: the numbers that travel with it, on the gradients' device. From now on complete buckets are handed over.
char* fr_reducer_arm(Reducer* reducer, const at::Tensor* numbers) {
  return guarded([&] {
    std::lock_guard<std::mutex> lock(reducer->mutex);
    at::NoGradGuard no_grad;
    reducer->tail.copy_(*numbers, /*non_blocking=*/true);
    reducer->armed = true;
  });
}

// After the last backward pass: hands over what is left (gradients that never came count as zero), waits for all sums; of NCCL's, the current
// stream waits for them, not the host. `waited_us`: time in here, which is what the overlap did not hide.
char* fr_reducer_finish(Reducer* reducer, uint64_t* waited_us) {
  auto begun = Clock::now();
  char* failed = guarded([&] {
    std::unique_lock<std::mutex> lock(reducer->mutex);
    reducer->armed = false;
    at::NoGradGuard no_grad;
    try {
      reducer->launch_rest();
    } catch (const std::exception& error) {
      if (reducer->failed.empty()) reducer->failed = error.what();
    }
    lock.unlock();
    reducer->wait_for_all();
  });
  *waited_us = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begun).count();
  return failed;
}

// The step's numbers, summed over the ranks, where the gradients are.
char* fr_reducer_tail(Reducer* reducer, at::Tensor** out) {
  return guarded([&] { *out = new at::Tensor(reducer->tail); });
}
}
