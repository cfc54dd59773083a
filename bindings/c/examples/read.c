/* Reads a bucket with a loop of its own, stops half-way, and goes on from the state: what a program that polls other things does.
 *   cc read.c $(pkg-config --cflags --libs fuelrail) && ./a.out http://127.0.0.1:9000/bucket/training/ */
#include <fuelrail.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t samples, bytes, labels;

static void stop(fuelrail_error *error)
{
    fprintf(stderr, "error: %s\n", error->message);
    fuelrail_error_free(error);
    exit(1);
}

/* Reads at most `most` batches, and gives the state after them. */
static char *read_some(const char *uri, const char *state, uint64_t most)
{
    const fuelrail_setting settings[] = {{"uri", uri}, {"batch_size", "32"}, {"seed", "7"}};
    fuelrail_error *error;
    fuelrail_loader *loader = fuelrail_open(settings, 3, state, &error);
    if (!loader)
        stop(error);
    struct pollfd event = {fuelrail_loader_eventfd(loader, &error), POLLIN, 0};
    if (event.fd < 0)
        stop(error);
    for (uint64_t read = 0; read < most;) {
        fuelrail_batch *batch;
        fuelrail_next found = fuelrail_loader_next(loader, 0, &batch, &error);
        if (found == FUELRAIL_NEXT_ERROR)
            stop(error);
        if (found == FUELRAIL_NEXT_OVER)
            break;
        if (found == FUELRAIL_NEXT_NOT_YET) {
            poll(&event, 1, -1); /* add descriptors of your own */
            continue;
        }
        for (size_t i = 0; i < fuelrail_batch_len(batch); i++) {
            size_t len;
            const uint8_t *sample = fuelrail_batch_sample(batch, i, &len, NULL);
            for (size_t at = 0; at < len; at++)
                bytes += sample[at];
            labels += (uint64_t)fuelrail_batch_labels(batch)[i];
        }
        samples += fuelrail_batch_len(batch);
        fuelrail_batch_release(batch);
        read++;
    }
    char *behind = fuelrail_loader_state(loader, &error);
    if (!behind)
        stop(error);
    fuelrail_close(loader);
    return behind;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s URI\n", argv[0]);
        return 2;
    }
    char *state = read_some(argv[1], NULL, 5);
    fuelrail_string_free(read_some(argv[1], state, UINT64_MAX));
    fuelrail_string_free(state);
    printf("%" PRIu64 " samples, sum of bytes %" PRIu64 ", sum of labels %" PRIu64 "\n", samples, bytes, labels);
    return 0;
}
