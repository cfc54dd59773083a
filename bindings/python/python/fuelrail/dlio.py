"""A data loader for DLIO, the program behind MLPerf Storage.

A workload names it in `reader.data_loader_classname`: `fuelrail.dlio.DataLoader`.
"""

import atexit
import io
import os

import numpy
from dlio_benchmark.common.enumerations import DataLoaderType, FrameworkType
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
from dlio_benchmark.reader.reader_factory import ReaderFactory
from dlio_benchmark.utils.utility import DLIOMPI

from fuelrail._arrays import arrays
from fuelrail._errors import UsageError
from fuelrail._fuelrail import Loader

__all__ = ["DataLoader"]

_FORMATS = ["npz", "npy", "jpeg", "png", "csv", "hdf5", "tfrecord"]


class DataLoader(BaseDataLoader):
    """Fuelrail in the place of DLIO's own loader, which makes one for training and one for evaluation.

    It reads `train/` and `valid/` of `FUELRAIL_URI` (a bucket or a folder), or without one of the workload's data
    folder. Batch size, epochs, seed, rank and framework are the workload's; `read_threads` are threads that parse. The
    engine shuffles, in another order each epoch, unless both `file_shuffle` and `sample_shuffle` are off. All other
    settings are read from `FUELRAIL_*` variables.

    A batch is a tensor of the framework, uint8, of one made-up image, as DLIO's own loaders give it: N×D×D×1 once
    DLIO's reader has parsed N files; with tfrecord, whose records the engine parses, D×D. A step that is not full is
    dropped.
    """

    def __init__(self, format_type, dataset_type, epoch_number):
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.CUSTOM)
        self._loader, self._settings = None, {}

    def read(self):
        """Opens the data set and begins to fetch.

        Raises
        ------
        UsageError
            Where the format is not read, or the workload has another number of samples than the folder.
        """
        args, form = self._args, self.format_type.value
        if form not in _FORMATS:
            hint = f"set dataset.format to one of {', '.join(_FORMATS)}"
            raise UsageError(f"DLIO's format {form} is not read through fuelrail; {hint}", hint=hint)
        root = os.environ.get("FUELRAIL_URI") or os.path.abspath(os.path.join(args.storage_root, args.data_folder))
        settings = {"format": "tfrecord"}
        if form != "tfrecord":
            shape, threads = f"{args.max_dimension}x{args.max_dimension}x1", max(args.read_threads, 1)
            settings = {"decode": shape, "decode_with": self._parsed, "decode_threads": threads}
        self._settings = {
            "uri": f"{root.rstrip('/')}/{self.dataset_type}/",
            "batch_size": self.batch_size,
            "epochs": args.epochs,
            "seed": args.seed,
            # DLIO keeps the one as the text of the workload, the other as an enumeration.
            "shuffle": {str(args.file_shuffle), str(args.sample_shuffle)} != {"off"},
            "drop_last": True,
            "rank": args.my_rank,
            "world": args.comm_size,
            # A rank that evaluates has two loaders.
            "local_world": DLIOMPI.get_instance().npernode() * (2 if args.do_eval else 1),
            **settings,
        }
        self._loader = Loader(**self._settings)
        # DLIO does not tell a loader when the run ends.
        atexit.register(lambda: self._loader.close())
        if self._loader.samples != self.num_samples:
            found, uri = self._loader.samples, self._settings["uri"]
            hint = "set dataset.num_files_train and num_files_eval to what is there; only tfrecord files hold several"
            raise UsageError(f"{found} samples in {uri}, and {self.num_samples} in the workload; {hint}", hint=hint)

    def next(self):
        """Yields the batches of this rank in the next epoch."""
        epoch = self.epoch_number - 1
        self.epoch_number += 1
        if self._loader.epoch < epoch:
            # DLIO left the epoch before early, as total_training_steps says.
            state = dict(self._loader.state_dict(), epoch=epoch, position=0)
            self._loader.close()
            self._loader = Loader(**self._settings, state=state)
        while self._loader.epoch == epoch:
            yield self._tensor(next(self._loader))

    def finalize(self):
        """Does nothing: the next epoch is being fetched already."""

    def _parsed(self, samples, ids, epoch):
        # On a thread of the engine's: what DLIO's reader does with files, and what it then gives for each.
        reader = ReaderFactory.get_reader(self.format_type, self.dataset_type, -1, epoch + 1)
        for id, sample in zip(ids, samples, strict=True):
            # DLIO's readers of NumPy's files copy the data and compute its checksum while they hold the GIL.
            found = arrays(sample) if self.format_type.value in ("npz", "npy") else reader.open(io.BytesIO(sample))
            reader.open_file_map[id] = found["x"] if isinstance(found, dict) else found
            reader.get_sample(id, 0)
            reader.preprocess()
            reader.close(id)
            del reader.open_file_map[id]
        return numpy.stack([self._args.resized_image] * len(samples))

    def _tensor(self, batch):
        images = self._args.resized_image if batch.shape is None else batch
        if self._args.framework is FrameworkType.PYTORCH:
            import torch

            return torch.from_dlpack(images)
        import tensorflow

        return tensorflow.convert_to_tensor(numpy.from_dlpack(images))
