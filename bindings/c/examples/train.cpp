// Trains a small model on decoded digits with libtorch, whose tensors lie over the memory of the batches.
//   T=$LIBTORCH; c++ -std=c++17 train.cpp -I$T/include -I$T/include/torch/csrc/api/include -L$T/lib -ltorch_cpu -lc10 -Wl,-rpath,$T/lib
//       $(pkg-config --cflags --libs fuelrail) && ./a.out http://127.0.0.1:9000/bucket/training/
#include <fuelrail.h>
#include <torch/torch.h>

#include <cstdio>
#include <memory>
#include <stdexcept>

template <auto release> struct Release {
    template <class T> void operator()(T *handle) const { release(handle); }
};
using Loader = std::unique_ptr<fuelrail_loader, Release<fuelrail_close>>;
using Batch = std::unique_ptr<fuelrail_batch, Release<fuelrail_batch_release>>;
using Error = std::unique_ptr<fuelrail_error, Release<fuelrail_error_free>>;

[[noreturn]] static void fail(fuelrail_error *error)
{
    Error held(error);
    throw std::runtime_error(held->message);
}

static Loader open(const char *uri)
{
    const fuelrail_setting settings[] = {{"uri", uri}, {"decode", "28x28x1"}, {"batch_size", "64"}, {"epochs", "3"}};
    fuelrail_error *error;
    Loader loader(fuelrail_open(settings, 4, nullptr, &error));
    if (!loader)
        fail(error);
    return loader;
}

// The next batch; null when the run is over.
static Batch next(const Loader &loader)
{
    fuelrail_batch *batch;
    fuelrail_error *error;
    if (fuelrail_loader_next(loader.get(), -1, &batch, &error) == FUELRAIL_NEXT_ERROR)
        fail(error);
    return Batch(batch);
}

// The pixels where they lie. The tensor holds the batch, which is released with the last view of it.
static torch::Tensor pixels(Batch batch)
{
    fuelrail_shape shape;
    size_t len;
    if (!fuelrail_batch_shape(batch.get(), &shape))
        throw std::runtime_error("the samples are not decoded");
    void *bytes = const_cast<uint8_t *>(fuelrail_batch_bytes(batch.get(), &len, nullptr));
    auto sizes = {int64_t(shape.samples), int64_t(shape.channels * shape.height * shape.width)};
    return torch::from_blob(bytes, sizes, [held = std::shared_ptr(std::move(batch))](void *) {}, torch::kUInt8);
}

int main(int, char **argv)
try {
    torch::manual_seed(0);
    torch::nn::Sequential model(torch::nn::Linear(784, 64), torch::nn::ReLU(), torch::nn::Linear(64, 10));
    torch::optim::Adam optimiser(model->parameters());
    auto loader = open(argv[1]);
    double first = 0, last = 0;
    while (auto batch = next(loader)) {
        auto count = int64_t(fuelrail_batch_len(batch.get()));
        auto list = const_cast<int32_t *>(fuelrail_batch_labels(batch.get()));
        auto labels = torch::from_blob(list, {count}, torch::kInt32).to(torch::kInt64);
        auto loss = torch::nn::functional::cross_entropy(model->forward(pixels(std::move(batch)) / 255.0), labels);
        optimiser.zero_grad();
        loss.backward();
        optimiser.step();
        last = loss.item<double>();
        first = first > 0 ? first : last;
    }
    std::printf("loss %.3f at first, %.3f at last\n", first, last);
} catch (const std::exception &error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
}
