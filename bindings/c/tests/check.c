/* What the tests of programs.rs run: the first argument says which part. */
#define _POSIX_C_SOURCE 200809L
#include <fuelrail.h>
#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static fuelrail_loader *opened(const fuelrail_setting *settings, size_t count)
{
    fuelrail_error *error = (fuelrail_error *)1;
    fuelrail_loader *loader = fuelrail_open(settings, count, NULL, &error);
    if (!loader) {
        fprintf(stderr, "%s: %s\n", error->kind, error->message);
        exit(1);
    }
    assert(!error);
    return loader;
}

/* The next batch, or NULL at the end, in waits of so long each. */
static fuelrail_batch *next(fuelrail_loader *loader, int timeout_ms)
{
    fuelrail_batch *batch;
    fuelrail_error *error;
    fuelrail_next found;
    while ((found = fuelrail_loader_next(loader, timeout_ms, &batch, &error)) == FUELRAIL_NEXT_NOT_YET)
        assert(timeout_ms >= 0 && !batch && !error);
    assert(found == FUELRAIL_NEXT_BATCH || found == FUELRAIL_NEXT_OVER);
    assert((found == FUELRAIL_NEXT_BATCH) == (batch != NULL) && !error);
    return batch;
}

static uint64_t sum(const uint8_t *bytes, size_t len)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < len; i++)
        sum = sum * 31 + bytes[i];
    return sum;
}

/* All that batches say, a line a sample, and fields where there are any. */
static void list(const fuelrail_setting *settings, size_t count)
{
    fuelrail_loader *loader = opened(settings, count);
    printf("%" PRIu64 " batches %" PRIu64 " samples\n", fuelrail_loader_batches(loader), fuelrail_loader_samples(loader));
    for (size_t i = 0; fuelrail_loader_class(loader, i); i++)
        printf("class %s\n", fuelrail_loader_class(loader, i));
    for (size_t i = 0; fuelrail_loader_notice(loader, i); i++)
        assert(*fuelrail_loader_notice(loader, i));
    for (fuelrail_batch *batch; (batch = next(loader, 1)); fuelrail_batch_release(batch)) {
        size_t whole, len;
        fuelrail_error *error;
        const uint8_t *bytes = fuelrail_batch_bytes(batch, &whole, &error);
        fuelrail_shape shape;
        if (fuelrail_batch_shape(batch, &shape))
            printf("shape %zu %zu %zu %zu\n", shape.samples, shape.height, shape.width, shape.channels);
        for (size_t i = 0; i < fuelrail_batch_len(batch); i++) {
            const uint8_t *sample = fuelrail_batch_sample(batch, i, &len, &error);
            const char *key = fuelrail_batch_key(batch, i, &error);
            assert(sample == bytes + fuelrail_batch_offsets(batch)[i] && fuelrail_batch_weights(batch)[i] == 1.0f);
            assert(key == fuelrail_batch_key(batch, i, &error));
            printf("%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId32 " %s %zu %" PRIu64 "\n", fuelrail_batch_epoch(batch),
                   fuelrail_batch_step(batch), fuelrail_batch_ids(batch)[i], fuelrail_batch_labels(batch)[i], key, len,
                   sum(sample, len));
            const uint8_t *field = fuelrail_batch_field(batch, i, "bin", &len, &error);
            assert(!error && (!field || (bytes <= field && field + len <= bytes + whole)));
            if (field)
                printf("bin %zu %" PRIu64 "\n", len, sum(field, len));
            field = fuelrail_batch_field(batch, i, "absent", &len, &error);
            assert(!field && !error && len == 0);
        }
    }
    fuelrail_close(loader);
}

struct reader {
    fuelrail_loader *loader;
    fuelrail_batch *kept[64];
    size_t batches;
};

static void *read_all(void *arg)
{
    struct reader *reader = arg;
    while ((reader->kept[reader->batches] = next(reader->loader, -1)))
        reader->batches++;
    return NULL;
}

/* Two loaders, two threads each; this thread looks at them meanwhile, and releases all batches when the loaders are gone. */
static void threads(const fuelrail_setting *settings, size_t count)
{
    struct reader readers[4];
    pthread_t running[4];
    memset(readers, 0, sizeof readers);
    for (int i = 0; i < 4; i++) {
        readers[i].loader = i % 2 ? readers[i - 1].loader : opened(settings, count);
        assert(!pthread_create(&running[i], NULL, read_all, &readers[i]));
    }
    for (int looks = 0; looks < 5; looks++) {
        char *stats = fuelrail_loader_stats(readers[0].loader, NULL);
        char *state = fuelrail_loader_state(readers[2].loader, NULL);
        assert(strstr(stats, "\"batches\":") && strstr(state, "\"epoch\":"));
        fuelrail_string_free(stats);
        fuelrail_string_free(state);
    }
    for (int i = 0; i < 4; i++)
        assert(!pthread_join(running[i], NULL));
    uint64_t ids[2] = {0, 0};
    for (int i = 0; i < 4; i++)
        if (i % 2) {
            assert(readers[i].batches + readers[i - 1].batches == fuelrail_loader_batches(readers[i].loader));
            fuelrail_close(readers[i].loader);
        }
    for (int i = 0; i < 4; i++)
        for (size_t b = 0; b < readers[i].batches; b++) {
            fuelrail_batch *batch = readers[i].kept[b];
            for (size_t s = 0; s < fuelrail_batch_len(batch); s++) {
                size_t len;
                assert(*fuelrail_batch_sample(batch, s, &len, NULL) && len > 0);
                ids[i / 2] += fuelrail_batch_ids(batch)[s];
            }
            fuelrail_batch_release(batch);
        }
    printf("%" PRIu64 " %" PRIu64 "\n", ids[0], ids[1]);
}

/* Prints an error that is expected, and frees it. */
static void expect(fuelrail_error *error, const char *kind, const char *hint)
{
    assert(error);
    printf("%s|%s|%s|%s|%" PRIu32 "\n", error->kind, error->message, error->object ? error->object : "-",
           error->hint ? error->hint : "-", error->attempts);
    fflush(stdout); /* a fork may come */
    assert(!strcmp(error->kind, kind) && (!hint || strstr(error->hint, hint)));
    fuelrail_error_free(error);
}

static void refused(const char *uri, const char *name, const char *value, const char *kind, const char *hint)
{
    const fuelrail_setting settings[] = {{"uri", uri}, {name, value}, {"rank", NULL}};
    fuelrail_error *error;
    assert(!fuelrail_open(settings, 3, NULL, &error));
    expect(error, kind, hint);
    assert(!fuelrail_open(settings, 3, NULL, NULL));
}

static void errors(const fuelrail_setting *settings, size_t count, const char *nowhere)
{
    const char *uri = settings[0].value;
    fuelrail_error *error;
    fuelrail_batch *batch = (fuelrail_batch *)1;
    size_t len = 7;
    refused(uri, "batch_sise", "3", "usage", "batch_size");
    refused(uri, "uri", nowhere, "usage", "keep one");
    refused(uri, "batch_size", "none", "usage", NULL);
    refused(uri, "batch_size", "\xff", "usage", "UTF-8");
    refused(uri, NULL, "3", "usage", NULL);
    refused(uri, "memory_limit", "10kB", "budget", NULL);
    refused(nowhere, "outage_limit", "1s", "network", NULL);
    assert(!fuelrail_open(NULL, 3, NULL, &error));
    expect(error, "usage", NULL);
    assert(!fuelrail_open(settings, count, "{}", &error));
    expect(error, "usage", NULL);

    assert(fuelrail_loader_next(NULL, 0, &batch, &error) == FUELRAIL_NEXT_ERROR);
    expect(error, "usage", NULL);
    assert(fuelrail_loader_eventfd(NULL, &error) == -1);
    expect(error, "usage", NULL);
    assert(!fuelrail_loader_state(NULL, NULL) && !fuelrail_loader_stats(NULL, NULL) && !fuelrail_loader_class(NULL, 0));
    assert(!fuelrail_batch_len(NULL) && !fuelrail_batch_ids(NULL) && !fuelrail_batch_shape(NULL, NULL));
    assert(!fuelrail_batch_bytes(NULL, &len, NULL));
    fuelrail_close(NULL);
    fuelrail_batch_release(NULL);
    fuelrail_error_free(NULL);
    fuelrail_string_free(NULL);

    fuelrail_loader *loader = opened(settings, count);
    assert(fuelrail_loader_next(loader, -1, NULL, &error) == FUELRAIL_NEXT_ERROR);
    expect(error, "usage", NULL);
    batch = next(loader, -1);
    assert(!fuelrail_batch_sample(batch, fuelrail_batch_len(batch), &len, &error) && len == 0);
    expect(error, "usage", NULL);
    assert(!fuelrail_batch_sample(batch, 0, NULL, &error));
    expect(error, "usage", NULL);
    assert(!fuelrail_batch_key(batch, SIZE_MAX, &error));
    expect(error, "usage", NULL);
    assert(!fuelrail_batch_field(batch, 0, NULL, &len, &error));
    expect(error, "usage", NULL);
    assert(!fuelrail_batch_shape(batch, NULL));

    pid_t child = fork();
    if (child == 0) {
        fuelrail_batch *none;
        assert(*fuelrail_batch_sample(batch, 0, &len, NULL));
        assert(fuelrail_loader_next(loader, -1, &none, &error) == FUELRAIL_NEXT_ERROR && !none);
        expect(error, "environment", NULL);
        assert(!fuelrail_loader_state(loader, &error));
        expect(error, "environment", NULL);
        fuelrail_close(loader);
        kill(getpid(), SIGKILL); /* a checker of leaks would find what belongs to the parent's threads */
    }
    int status;
    assert(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    fuelrail_batch_release(batch);
    fuelrail_batch_release(next(loader, -1));
    fuelrail_close(loader);
}

/* Does not free an error. */
static void leak(const fuelrail_setting *settings, size_t count)
{
    fuelrail_error *error;
    assert(!fuelrail_open(settings, count, NULL, &error) && error);
    error = NULL;
}

static void warned(const char *text, void *context)
{
    assert(*text);
    ++*(int *)context;
}

int main(int argc, char **argv)
{
    static int warnings;
    fuelrail_setting settings[16];
    size_t count = 0;
    assert(argc > 2 && strcmp(fuelrail_version(), "") > 0);
    fuelrail_on_warning(warned, &warnings);
    settings[count++] = (fuelrail_setting){"uri", argv[2]};
    for (int i = 3; i + 1 < argc; i += 2)
        settings[count++] = (fuelrail_setting){argv[i], argv[i + 1]};
    if (!strcmp(argv[1], "list"))
        list(settings, count);
    else if (!strcmp(argv[1], "threads"))
        threads(settings, count);
    else if (!strcmp(argv[1], "errors"))
        errors(settings, count, argv[argc - 1]);
    else if (!strcmp(argv[1], "leak"))
        leak(settings, count);
    return 0;
}
