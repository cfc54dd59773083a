"""Batches for PyTorch: `DataLoader(fuelrail.torch.IterableDataset(…), batch_size=None, num_workers=0)`."""

import json
import os
import socket

import torch
import torch.distributed
import torch.utils.data

from fuelrail._errors import Error, UsageError
from fuelrail._fuelrail import DeviceBatch, Loader

__all__ = ["IterableDataset", "tensors"]


def tensors(batch):
    """A decoded batch as a dict of tensors: `image` (uint8, N×H×W×C unless the loader has `decode_dtype` and `decode_layout`; the batch's
    own memory: do not write to it), `label` (int64, -1 where there is none), `id` (int64) and `weight` (float32: what to multiply each loss
    by, 1 unless epochs are drawn by importance). With `device` all but `id` are on that GPU, for the stream that is current. A batch that is not
    decoded as it is."""
    if batch.shape is None:
        return batch
    on_device = isinstance(batch, DeviceBatch)
    image = torch.from_dlpack(batch)
    return {
        "image": image,
        "label": torch.from_dlpack(batch.labels_on_device) if on_device else _copied(batch.labels, torch.int32).long(),
        "id": _copied(batch.ids, torch.int64),
        "weight": _copied(batch.weights, torch.float32).to(image.device),
    }


def _copied(view, dtype):
    # torch takes no empty buffer, and warns about one that is read-only.
    return torch.frombuffer(bytearray(view), dtype=dtype) if len(view) else torch.empty(0, dtype=dtype)


class IterableDataset(torch.utils.data.IterableDataset):
    """A data set for `DataLoader(…, batch_size=None, num_workers=0)`, and for torchdata's `StatefulDataLoader`.

    A pass over it, such as one `for` loop, delivers `epochs` epochs (1 by default), and the next pass those after. A pass that is left
    early is over: the next one begins at the epoch where it would have begun. One loader serves all passes: its cache stays, and the
    first batches of the next pass are fetched while the last ones of this pass are used. `close()` ends that.

    Parameters
    ----------
    uri, batch_size, seed, shuffle, memory_limit, cache_limit, spill_dirs, format, decode, device, state, **settings
        As of `fuelrail.Loader`.
    epochs : int, default 1
        Epochs of one pass.
    rank, world : int, optional
        By default those of `torch.distributed`, else `RANK` and `WORLD_SIZE` of the environment, else 0 and 1.
    transform : callable, default `tensors`
        What becomes of a batch.
    peers : bool or sequence of str, default False
        `True`: ranks keep blocks for each other, at addresses that they tell each other over `torch.distributed`. All ranks open their data
        sets together then. Beyond one machine it wants `peer_ca_file`, `peer_cert_file` and `peer_key_file`, on one `peer_secret_file`. `peer_node` names
        this rank's node where its address may be another after a restart, as in Kubernetes.
    """

    def __init__(self, uri, *, batch_size, epochs=1, rank=None, world=None, state=None, transform=tensors, **settings):
        super().__init__()
        if epochs < 1:
            raise UsageError("epochs is 0; ask for at least one epoch", hint="ask for at least one epoch")
        ranks = _ranks() if rank is None and world is None else (rank or 0, world or 1)
        self._settings = dict(settings, uri=uri, batch_size=batch_size, rank=ranks[0], world=ranks[1])
        self._epochs, self._transform = epochs, transform
        self._loader, self._state = None, state
        # The number of the pass, and whether the next iterator goes on inside it.
        self._pass, self._goes_on = None, True

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            hint = "use DataLoader(dataset, batch_size=None, num_workers=0): the loader has threads of its own"
            raise UsageError(f"a fuelrail data set in a DataLoader of {worker.num_workers} workers; {hint}", hint=hint)
        return self._iterate()

    def _iterate(self):
        loader = self._opened()
        if not self._goes_on:
            # The pass before was left early: that is its end. Scores belong to a place, so that drawn epochs are read to theirs.
            end = (self._pass + 1) * self._epochs
            while loader.takes_losses and loader.epoch < end:
                next(loader)
            if loader.epoch < end:
                self._open(dict(loader.state_dict(), epoch=end, position=0))
                loader = self._loader
        self._pass, self._goes_on = loader.epoch // self._epochs, False
        end = (self._pass + 1) * self._epochs
        while loader.epoch < end:
            yield self._transformed(loader, end)

    def _transformed(self, loader, end):
        # The batch is not held beyond this, so that waiting for the next one does not keep its memory.
        try:
            batch = next(loader)
        except Error:
            # The next iterator tries again from here on.
            self._goes_on = True
            self.close()
            raise
        self._goes_on = loader.epoch >= end
        return self._transform(batch)

    def __len__(self):
        """Batches of this rank in a pass."""
        return self._opened().batches_per_epoch * self._epochs

    def _opened(self):
        if self._loader is None:
            self._open(self._state)
        return self._loader

    def _open(self, state):
        self.close()
        # One loader for all passes: as many epochs as it counts for the largest data set.
        peers = self._settings.get("peers")
        told = {} if not isinstance(peers, bool) else {"peers": _addresses(self._settings.get("peer_node")) if peers else None}
        self._loader = Loader(**{**self._settings, **told}, epochs=2**24 - 1, state=state)
        self._state = None

    def state_dict(self):
        """Where the data set stands after the last batch: small, exact, the same on every rank."""
        if self._loader is None and self._state is not None:
            # Nothing is opened for it: after an outage there may be no bucket to ask.
            return json.loads(self._state) if isinstance(self._state, str) else dict(self._state)
        return self._opened().state_dict()

    def load_state_dict(self, state_dict):
        """Goes on from a state: the next iterator begins there, also inside an epoch and for another number of ranks."""
        self.close()
        self._state, self._goes_on = state_dict, True

    def set_epoch(self, epoch):
        """Does nothing: every pass takes the next epochs by itself."""

    def report(self, ids, losses):
        """Reports the losses of this rank's batch, by which the next epochs are drawn: after every step, on every rank, in order.

        Where `torch.distributed` is initialised the losses of all ranks are gathered first, so that all ranks draw the same. Batches may
        be of different lengths; a rank whose last batch is empty reports nothing for it: `report([], [])`.

        Parameters
        ----------
        ids : tensor or sequence of int, (samples,)
            `batch["id"]`.
        losses : tensor or sequence of float, (samples,)
            A finite loss for each, before it is multiplied with `batch["weight"]`.

        Raises
        ------
        UsageError
            As of `fuelrail.Loader.report`, on every rank alike. Nothing is recorded then.
        """
        loader, distributed = self._opened(), torch.distributed
        if not loader.takes_losses or self._settings["world"] == 1 or not _is_distributed():
            return loader.report(ids, losses)
        own = [numbers.tolist() if hasattr(numbers, "tolist") else list(numbers) for numbers in (ids, losses)]
        ranks = [None] * distributed.get_world_size()
        distributed.all_gather_object(ranks, own)
        for rank, (ids, losses) in enumerate(ranks):
            if len(ids) != len(losses):
                hint = 'report one loss for each sample: reduction="none"'
                raise UsageError(f"{len(losses)} losses for {len(ids)} samples on rank {rank}; {hint}", hint=hint)
        loader.report(*(sum(numbers, []) for numbers in zip(*ranks, strict=True)))

    def stats(self):
        """As of `fuelrail.Loader`."""
        return self._opened().stats()

    def hand_over(self, seconds):
        """As of `fuelrail.Loader`."""
        return self._opened().hand_over(seconds)

    def close(self):
        """Stops the loader and gives its memory back. The next pass goes on where this one stands."""
        if self._loader is not None:
            self._state = self._loader.state_dict()
            self._loader.close()
            self._loader = None

    def __getstate__(self):
        """What goes to another process: where it stands, and not its threads."""
        state = dict(self.__dict__, _loader=None)
        if self._loader is not None:
            state["_state"] = self._loader.state_dict()
        return state


def _addresses(node):
    """An address of each rank, in their order, on a port that is free now; `None` where there is one rank. `node` names this one's node."""
    if not _is_distributed() or torch.distributed.get_world_size() == 1:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        # Nothing is sent: it tells which of this machine's addresses the others can reach.
        way.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 9))
        host = way.getsockname()[0]
    with socket.create_server((host, 0)) as free:
        own = f"{host}:{free.getsockname()[1]}"
    node = node or os.environ.get("FUELRAIL_PEER_NODE")
    ranks = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(ranks, f"{node}={own}" if node else own)
    return ranks


def _is_distributed():
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _ranks():
    if _is_distributed():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
