/* Fuelrail for C99 and C++: streams the objects of a bucket into batches.
 *
 * Errors: where a function takes `fuelrail_error **error`, it sets *error to NULL or, where it fails, to an error that you free
 * with fuelrail_error_free. Pass NULL to ignore it. No call unwinds or ends the process.
 *
 * Memory: what is read from a batch is valid until fuelrail_batch_release, and read-only. Each batch that you keep leaves less
 * memory for the next ones. A function of a loader or batch that takes no error gives 0 or NULL for a NULL handle.
 *
 * Threads: a loader may be called from any thread, and from several at a time. The functions of a batch may be, too.
 *
 * fork(): a child cannot use its parent's loaders, whose calls fail with kind `environment`; it may open its own. The samples of
 * its batches stay readable there.
 */

#ifndef FUELRAIL_H
#define FUELRAIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * What `fuelrail_loader_next` found.
 */
typedef enum fuelrail_next {
  /**
   * It failed: see the error. A run that has failed is over, but for `budget`: release batches, and ask again.
   */
  FUELRAIL_NEXT_ERROR = -1,
  /**
   * A batch.
   */
  FUELRAIL_NEXT_BATCH = 0,
  /**
   * It is not there yet.
   */
  FUELRAIL_NEXT_NOT_YET = 1,
  /**
   * The run is over.
   */
  FUELRAIL_NEXT_OVER = 2,
} fuelrail_next;

/**
 * Samples delivered together. It holds its memory, which the loader has back when the batch is released.
 */
typedef struct fuelrail_batch fuelrail_batch;

/**
 * Streams a bucket into batches, in an order that is a function of the seed.
 */
typedef struct fuelrail_loader fuelrail_loader;

/**
 * A setting as texts. `engine/docs/SETTINGS.md` lists them.
 */
typedef struct fuelrail_setting {
  /**
   * Name or key, such as `batch_size`; a setting that is given twice is refused.
   */
  const char *name;
  /**
   * Lists are separated by commas. NULL counts as not set.
   */
  const char *value;
} fuelrail_setting;

/**
 * What happened, and what to do about it. Freed by `fuelrail_error_free`. Its texts are never NULL unless it says so here.
 */
typedef struct fuelrail_error {
  /**
   * One word: `usage`, `environment`, `budget`, `network`, `throttled`, `server`, `truncated`, `stalled`, `protocol`,
   * `mismatch`, `changed`, `not_found`, `expired`, `exists`, `denied`, `untrusted`, `undecodable`, `file`, `program`, `cancelled`, or
   * `bug`, which is a fault of this library: please report it.
   */
  const char *kind;
  /**
   * The whole error on one line, object and hint included.
   */
  const char *message;
  /**
   * The object concerned, or NULL.
   */
  const char *object;
  /**
   * What to do about it, or NULL.
   */
  const char *hint;
  /**
   * Attempts made, 0 where nothing is tried again.
   */
  uint32_t attempts;
} fuelrail_error;

/**
 * What the bytes of a decoded batch are: samples of `height` rows of `width` pixels of `channels` numbers, without gaps; or, where
 * `planes` is true, samples of `channels` planes of `height` rows of `width` numbers. A number has `number_bytes`: 1 of an integer
 * from 0 to 255, 2 or 4 of a floating-point number.
 */
typedef struct fuelrail_shape {
  size_t samples;
  size_t height;
  size_t width;
  size_t channels;
  size_t number_bytes;
  bool planes;
} fuelrail_shape;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of this library, such as `0.1.0`.
 */
const char *fuelrail_version(void);

/**
 * Opens a loader: reads `count` settings, lists the bucket, starts the threads. What is not set is read from `FUELRAIL_*`
 * variables. `state` is NULL, or what `fuelrail_loader_state` gave: the run goes on there.
 *
 * NULL on errors: `usage` for a setting or a state, `budget` for a `memory_limit` that is too small (the hint says what is
 * needed), `network`, `not_found`, `denied` and others from the listing.
 *
 * Any thread. Several loaders at a time are fine.
 */
struct fuelrail_loader *fuelrail_open(const struct fuelrail_setting *settings, size_t count, const char *state, struct fuelrail_error **error);

/**
 * Stops the threads and gives the memory back; where batches are held, which stay valid, with the last of them. NULL does nothing.
 *
 * Any thread, once; no other call of this loader may be under way or follow.
 */
void fuelrail_close(struct fuelrail_loader *loader);

/**
 * The next batch, in order, into `*batch`, which is NULL where there is none. Waits for it at most `timeout_ms`: -1 waits
 * until there is one, 0 only looks. After a look that found none, the descriptor of `fuelrail_loader_eventfd` becomes readable
 * when it is time for the next look. Only a wait detects that the batches you keep leave no memory for the next one.
 *
 * Any thread. Where several wait, each batch goes to one of them, and a call may take up to 100 ms longer than it is told.
 */
enum fuelrail_next fuelrail_loader_next(const struct fuelrail_loader *loader, int timeout_ms, struct fuelrail_batch **batch, struct fuelrail_error **error);

/**
 * A file descriptor for poll(), select() or epoll: readable unless the latest call of `fuelrail_loader_next`, on any thread, had a
 * timeout of 0 and found no batch, and none has come since. The loader owns it: do not read from it or close it. -1 on errors.
 *
 * Any thread. Waits up to 100 ms while another one waits for a batch.
 */
int fuelrail_loader_eventfd(const struct fuelrail_loader *loader, struct fuelrail_error **error);

/**
 * Where the run stands after the last batch taken, as JSON: the same on every rank, and for any number of ranks. NULL on
 * errors. Freed by `fuelrail_string_free`.
 *
 * Any thread, without waiting.
 */
char *fuelrail_loader_state(const struct fuelrail_loader *loader, struct fuelrail_error **error);

/**
 * Counters and latencies so far, as JSON; names end in their unit. NULL on errors. Freed by `fuelrail_string_free`.
 *
 * Any thread. Waits up to 100 ms while another one waits for a batch.
 */
char *fuelrail_loader_stats(const struct fuelrail_loader *loader, struct fuelrail_error **error);

/**
 * Batches of this rank in this run, from where it started or resumed.
 */
uint64_t fuelrail_loader_batches(const struct fuelrail_loader *loader);

/**
 * Samples in the data set.
 */
uint64_t fuelrail_loader_samples(const struct fuelrail_loader *loader);

/**
 * The name of the class of this number, valid until the loader is closed; NULL beyond the last. Labels are such numbers.
 */
const char *fuelrail_loader_class(const struct fuelrail_loader *loader, size_t i);

/**
 * A notice: something that is not as fast or as safe as it could be, with cause and cure, valid until the loader is closed; NULL
 * beyond the last.
 */
const char *fuelrail_loader_notice(const struct fuelrail_loader *loader, size_t i);

/**
 * Samples of the batch: the last step of an epoch may hold fewer than `batch_size`, even none.
 */
size_t fuelrail_batch_len(const struct fuelrail_batch *batch);

/**
 * The epoch, from 0.
 */
uint64_t fuelrail_batch_epoch(const struct fuelrail_batch *batch);

/**
 * The step in the epoch, or in what is left of it after a resume, from 0.
 */
uint64_t fuelrail_batch_step(const struct fuelrail_batch *batch);

/**
 * Numbers of the samples in the data set's listing, one for each sample.
 */
const uint64_t *fuelrail_batch_ids(const struct fuelrail_batch *batch);

/**
 * Classes, one for each sample: -1 where it has none.
 */
const int32_t *fuelrail_batch_labels(const struct fuelrail_batch *batch);

/**
 * What to multiply each sample's loss by: all 1 unless epochs are drawn by importance.
 */
const float *fuelrail_batch_weights(const struct fuelrail_batch *batch);

/**
 * Where each sample starts in `fuelrail_batch_bytes`.
 */
const size_t *fuelrail_batch_offsets(const struct fuelrail_batch *batch);

/**
 * Whether the batch is decoded; if so, `*shape` says what `fuelrail_batch_bytes` are.
 */
bool fuelrail_batch_shape(const struct fuelrail_batch *batch, struct fuelrail_shape *shape);

/**
 * The whole memory of the batch, its length into `*len`: of a decoded batch the samples and nothing else, of others also what
 * lies between them. NULL on errors.
 */
const uint8_t *fuelrail_batch_bytes(const struct fuelrail_batch *batch, size_t *len, struct fuelrail_error **error);

/**
 * The bytes of sample `i`, their number into `*len`: without a copy. NULL on errors.
 */
const uint8_t *fuelrail_batch_sample(const struct fuelrail_batch *batch, size_t i, size_t *len, struct fuelrail_error **error);

/**
 * A field of sample `i`, such as `jpg` of a record of a tar archive, its length into `*len`: without a copy where it lies in the
 * batch as it is. NULL where the sample has no such field, with `decode` for all but those that the setting `fields` names, and on errors.
 */
const uint8_t *fuelrail_batch_field(const struct fuelrail_batch *batch, size_t i, const char *name, size_t *len, struct fuelrail_error **error);

/**
 * The key of sample `i`: of its record, or its object. NULL on errors.
 */
const char *fuelrail_batch_key(const struct fuelrail_batch *batch, size_t i, struct fuelrail_error **error);

/**
 * Gives the memory back: nothing read from the batch is valid any more. NULL does nothing. Also after the loader is closed.
 *
 * Any thread, once; no other call of this batch may be under way or follow.
 */
void fuelrail_batch_release(struct fuelrail_batch *batch);

/**
 * Frees an error and its texts. NULL does nothing.
 */
void fuelrail_error_free(struct fuelrail_error *error);

/**
 * Frees what `fuelrail_loader_state` or `fuelrail_loader_stats` gave. NULL does nothing.
 */
void fuelrail_string_free(char *string);

/**
 * Calls `warn` with each warning, which is valid during the call, and with `context`, on any thread; it must not throw. NULL prints
 * them to standard error, a line each. Without this call they are lost. The first call holds for the process.
 */
void fuelrail_on_warning(void (*warn)(const char *text, void *context), void *context);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FUELRAIL_H */
