//! Every maximum in one place, with its reason. Relations between limits are checked when the crate compiles.

/// Longest response head accepted. S3 heads are below 1 KiB; nginx refuses request heads above 8 KiB by default.
pub const RESPONSE_HEAD_BYTES_MAX: usize = 16 << 10;
/// Most header lines accepted in one head.
pub const RESPONSE_HEADERS_MAX: usize = 96;
/// Longest object key: what S3 allows.
pub const KEY_BYTES_MAX: usize = 1024;
/// Longest URI of a data set: a key with every byte escaped, braces and a host.
pub const URI_BYTES_MAX: usize = 8 << 10;
/// Most prefixes that the braces of one URI stand for: ten times the shards of the largest data sets people name so.
pub const PREFIXES_MAX: usize = 100_000;
/// Most samples in one data set: limited by the bits in an entry of the disk's index. Ids are 64 bits wide everywhere else.
pub const SAMPLES_MAX: u64 = (1 << 40) - 1;
/// Largest object: what S3 allows (5 TiB).
pub const OBJECT_BYTES_MAX: u64 = 5 << 40;
/// Default span of a block. Large enough to make a request's cost negligible, small enough to spread one object over connections.
pub const BLOCK_BYTES_DEFAULT: u64 = 8 << 20;
/// Largest block: its length must fit one range request and one receive.
pub const BLOCK_BYTES_MAX: u64 = 1 << 30;
/// Most shards: one per core of the largest machine we plan for.
pub const SHARDS_MAX: u16 = 256;
/// Most connections one shard opens.
pub const CONNECTIONS_PER_SHARD_MAX: usize = 256;
/// Most requests outstanding on one connection.
pub const PIPELINE_DEPTH_MAX: usize = 32;
/// Bytes of scratch memory per connection: heads land here, at most one maximal head and what follows it.
pub const SCRATCH_BYTES: usize = 16 << 10;
/// Most bytes of scratch memory per connection under TLS: sealed records land here, a dozen and more at a time.
pub const TLS_SCRATCH_BYTES: usize = 256 << 10;
/// Fewest: four records, so that one that is not whole leaves room for others.
pub const TLS_SCRATCH_BYTES_MIN: usize = 68 << 10;
/// Pieces one receive may scatter over: head and body of each pipelined response.
pub const SCATTER_PIECES_MAX: usize = 32;
/// Shortest segment of blocks on disk: below it, header and journal cost too much.
pub const SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// Longest segment: disk space is freed a segment at a time.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;
/// Files one ring holds open: blocks lie in segments of up to 1 GiB, each a file. With the default 512 sockets they are 1024
/// places, the soft limit of open files nearly everywhere: the kernel registers no larger table.
pub const RING_FILES_MAX: u32 = 512;
/// Files of a folder that one shard reads at once, and keeps open: the depth of the deepest disk queues.
pub const FOLDER_FILES_MAX: usize = 128;
/// Most entries in a channel between two shards.
pub const CHANNEL_ENTRIES: usize = 1024;
/// Entries in all channels one shard sends requests on: with many shards each channel is shorter, so that their memory
/// grows with the shards and not with the pairs of them.
pub const CHANNEL_ENTRIES_PER_SHARD: usize = 4096;
/// Alignment of every sample inside its batch and of every cached block: a cache line.
pub const SAMPLE_ALIGN: usize = 64;
/// Blocks from this length on are written to disk straight from the batch's memory; shorter ones are gathered into pages.
/// Below it, rounding up to a unit of the disk costs more room than the copy costs time.
pub const DIRECT_BYTES_MIN: u64 = 64 << 10;
/// Short blocks are gathered for so many bytes of a segment at a time; none lies across such a boundary.
pub const GATHER_BYTES: u64 = 1 << 20;
/// Bytes of the page a segment on disk begins with, and of each page of its journal.
pub const SEGMENT_PAGE_BYTES: usize = 4096;
/// Bytes of one record of a segment's journal.
pub const SEGMENT_RECORD_BYTES: usize = 64;
/// Batches one shard may hold open or ready at once.
pub const OPEN_BATCHES_MAX: usize = 1024;
/// Most pixels of one object that is decoded: the size of the largest cameras. A header that claims more is refused.
pub const PICTURE_PIXELS_MAX: u64 = 1 << 26;
/// Most pixels along one side of a decoded sample.
pub const SAMPLE_SIDE_MAX: u32 = 1 << 14;
/// Most frames of a decoded sample of sound: 23 minutes at 48 kHz.
pub const SOUND_FRAMES_MAX: u32 = 1 << 26;
/// Scratch memory a decoding thread keeps from one picture to the next; that of a larger one is freed after it.
pub const PICTURE_BYTES_KEPT: usize = 16 << 20;
/// Most threads that decode for one loader: one per core of the largest machine we plan for.
pub const DECODE_THREADS_MAX: usize = 512;
/// Most batches decoded ahead.
pub const DECODE_DEPTH_MAX: usize = 256;
/// Largest listing or error document read by the control plane.
pub const DOCUMENT_BYTES_MAX: usize = 64 << 20;

const _: () = assert!(SCRATCH_BYTES >= RESPONSE_HEAD_BYTES_MAX, "a maximal head must fit the scratch memory");
const _: () = assert!(SCATTER_PIECES_MAX >= 2, "a receive needs room for a head and its body");
const _: () = assert!(CHANNEL_ENTRIES_PER_SHARD / SHARDS_MAX as usize > 0, "every two shards have a channel");
const _: () = assert!(BLOCK_BYTES_DEFAULT <= BLOCK_BYTES_MAX);
const _: () = assert!(GATHER_BYTES >= DIRECT_BYTES_MIN && GATHER_BYTES.is_multiple_of(4096), "a short block fits");
const _: () = assert!(SAMPLE_ALIGN.is_power_of_two());
