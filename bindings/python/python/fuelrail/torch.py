"""Batches for PyTorch: `DataLoader(fuelrail.torch.IterableDataset(…), batch_size=None, num_workers=0)`."""

import json
import operator
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed
import torch.utils.data

from fuelrail._errors import Error, UsageError
from fuelrail._fuelrail import Batch, DeviceBatch, Loader, _check

__all__ = ["IterableDataset", "tensors"]


def tensors(batch: Batch | DeviceBatch) -> Any:
    """A decoded batch as a dict of tensors: `image` (uint8, N×H×W×C unless the loader has `decode_dtype` and `decode_layout`; the batch's
    own memory: do not write to it), `label` (int64, -1 where there is none), `id` (int64) and `weight` (float32: what to multiply each loss
    by, 1 unless epochs are drawn by importance). With `device` all but `id` are on that GPU, for the stream that is current. A batch that is not
    decoded as it is. Other fields of records (`fields`) are in the batch: a `transform` of yours adds them."""
    if batch.shape is None:
        return batch
    on_device = isinstance(batch, DeviceBatch)
    image = torch.from_dlpack(batch)
    return {
        "image": image,
        "label": torch.from_dlpack(batch.labels_on_device) if on_device else _copied(batch.labels, torch.int32).long(),
        "id": _copied(batch.ids, torch.int64),
        "weight": _moved(_copied(batch.weights, torch.float32), image.device),
    }


def _copied(view, dtype):
    # torch takes no empty buffer, and warns about one that is read-only.
    return torch.frombuffer(bytearray(view), dtype=dtype) if len(view) else torch.empty(0, dtype=dtype)


def _moved(weights, device):
    if device.type == "cpu":
        return weights
    # A copy from memory that is not pinned would wait for all work of the stream.
    return torch.ones_like(weights, device=device) if (weights == 1).all() else weights.pin_memory().to(device, non_blocking=True)


class IterableDataset(torch.utils.data.IterableDataset):
    """A data set for `DataLoader(…, batch_size=None, num_workers=0)`, and for torchdata's `StatefulDataLoader`.

    A pass over it, such as one `for` loop, delivers `epochs` epochs (1 by default), and the next pass those after. A pass that is left
    early, as by `break`, is over: the next one begins at the epoch where it would have begun, and ends the iterator before it. After `close()`,
    `load_state_dict()`, an error, and in a pickled copy, the next one goes on where this one stands. One loader serves all passes: its cache
    stays, and the first batches of the next pass are fetched while the last ones of this pass are used. `close()` ends that.

    Parameters
    ----------
    uri, batch_size, seed, shuffle, memory_limit, cache_limit, spill_dirs, format, decode, device, state, **settings
        As of `fuelrail.Loader`.
    epochs : int, default 1
        Epochs of one pass.
    rank, world : int, optional
        By default those of `torch.distributed`, else `RANK` and `WORLD_SIZE` of the environment, else 0 and 1, when the loader is opened:
        by the first batch, `len` or `state_dict()`.
    transform : callable, optional
        What becomes of a batch; without one what `tensors` makes of it. One for which it raises comes again from the next iterator, for which the loader is opened anew.
    peers : bool or sequence of str, default False
        `True`: ranks keep blocks for each other, at addresses that they tell each other over `torch.distributed`. All ranks open their data
        sets together then. Beyond one machine it wants `peer_ca_file`, `peer_cert_file` and `peer_key_file`, on one `peer_secret_file`. `peer_node` names
        this rank's node where its address may be another after a restart, as in Kubernetes.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        batch_size: int | None = None,
        epochs: int = 1,
        rank: int | None = None,
        world: int | None = None,
        state: dict[str, Any] | str | None = None,
        transform: Callable[[Any], Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        try:
            whole = operator.index(epochs)
        except TypeError:
            whole = 0
        if whole < 1:
            hint = "ask for a whole number of epochs, at least one"
            raise UsageError(f"epochs is {epochs!r}; {hint}", hint=hint)
        # An iterator gives its items once, and the loader may be opened again.
        settings = {name: list(value) if isinstance(value, Iterator) else value for name, value in settings.items()}
        self._settings = dict(settings, uri=uri, batch_size=batch_size)
        # Here and not at the first batch. Addresses of ranks are not known yet.
        apart = ["decode_with", "device", "device_depth"] + ["peers"] * isinstance(settings.get("peers"), bool)
        _check(**{name: value for name, value in self._settings.items() if name not in apart}, rank=0, world=1)
        self._given_ranks = None if rank is None and world is None else (rank or 0, world or 1)
        self._ranks = self._given_ranks
        self._epochs, self._transform = whole, transform or tensors
        self._loader, self._state, self._peers = None, state, None
        # The number of the pass, whether the next iterator goes on inside it, and how many iterators have begun.
        self._pass, self._goes_on, self._iterators = None, True, 0

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            hint = "use DataLoader(dataset, batch_size=None, num_workers=0): the loader has threads of its own"
            raise UsageError(f"a fuelrail data set in a DataLoader of {worker.num_workers} workers; {hint}", hint=hint)
        if self._loader is not None and self._given_ranks is None and _is_distributed() and self._ranks != _ranks():
            (was, of), (rank, world) = self._ranks, _ranks()
            hint = "open it after init_process_group (len and state_dict open it, too), or pass rank= and world="
            raise UsageError(f"the data set was opened as rank {was} of {of}, and torch.distributed has rank {rank} of {world}; {hint}", hint=hint)
        return self._iterate()

    def _iterate(self):
        self._iterators += 1
        own, loader = self._iterators, self._opened()
        if not self._goes_on:
            # The pass before was left early: that is its end. Scores belong to a place, so that drawn epochs are read to theirs.
            end = (self._pass + 1) * self._epochs
            try:
                while loader.takes_losses and loader.epoch < end:
                    next(loader)
            except Error:
                # The next iterator reads on from here.
                self._end()
                raise
            if loader.epoch < end:
                self._open(dict(loader.state_dict(), epoch=end, position=0))
                loader = self._loader
        self._pass, self._goes_on = loader.epoch // self._epochs, False
        end = (self._pass + 1) * self._epochs
        while loader.epoch < end:
            yield self._transformed(loader, end)
            if own != self._iterators:
                hint = "use one iterator at a time, or a data set for each"
                raise UsageError(f"a newer iterator over the data set has begun; {hint}", hint=hint)

    def _transformed(self, loader, end):
        taken = False
        # The batch is not held beyond this, so that waiting for the next one does not keep its memory.
        try:
            batch = next(loader)
            taken, self._goes_on = True, loader.epoch >= end
            return self._transform(batch)
        except Exception:
            # The next iterator tries again from here on, unless the state is another one by now.
            self._goes_on = True
            if loader is self._loader:
                self._end()
                self._state = loader._state_before() if taken else self._state
            raise

    def __len__(self) -> int:
        """Batches of this rank in a pass."""
        return self._opened().batches_per_epoch * self._epochs

    def _opened(self):
        if self._loader is None:
            self._open(self._state)
        return self._loader

    def _open(self, state):
        self._end()
        if self._given_ranks is None and (self._ranks is None or _is_distributed()):
            self._ranks = _ranks()
        rank, world = self._ranks
        # One loader for all passes: as many epochs as it counts for the largest data set.
        peers = self._settings.get("peers")
        told = {}
        if isinstance(peers, bool):
            # Agreed on once: a rank that opens it again alone, as after an error of its own, must not wait for the others.
            self._peers = self._peers or (_addresses(self._settings.get("peer_node")) if peers else None)
            told = {"peers": self._peers}
        self._loader = Loader(**{**self._settings, **told}, rank=rank, world=world, epochs=2**24 - 1, state=state)
        self._state = None

    def state_dict(self) -> dict[str, Any]:
        """Where the data set stands after the last batch: small, exact, the same on every rank."""
        if self._loader is None and self._state is not None:
            # Nothing is opened for it: after an outage there may be no bucket to ask.
            return json.loads(self._state) if isinstance(self._state, str) else dict(self._state)
        return self._opened().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any] | str) -> None:
        """Goes on from a state: the next iterator begins there, also inside an epoch and for another number of ranks."""
        self._end()
        self._state, self._goes_on = state_dict, True

    def set_epoch(self, epoch: int) -> None:
        """Does nothing: every pass takes the next epochs by itself."""

    def report(self, ids: torch.Tensor | Sequence[int], losses: torch.Tensor | Sequence[float]) -> None:
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
        if not loader.takes_losses or self._ranks[1] == 1 or not _is_distributed():
            return loader.report(ids, losses)
        own = [numbers.tolist() if hasattr(numbers, "tolist") else list(numbers) for numbers in (ids, losses)]
        ranks = [None] * distributed.get_world_size()
        distributed.all_gather_object(ranks, own)
        for rank, (ids, losses) in enumerate(ranks):
            if len(ids) != len(losses):
                hint = 'report one loss for each sample: reduction="none"'
                raise UsageError(f"{len(losses)} losses for {len(ids)} samples on rank {rank}; {hint}", hint=hint)
        loader.report(*(sum(numbers, []) for numbers in zip(*ranks, strict=True)))

    def stats(self) -> dict[str, Any]:
        """As of `fuelrail.Loader`."""
        return self._opened().stats()

    def hand_over(self, seconds: float) -> dict[str, Any]:
        """As of `fuelrail.Loader`."""
        return self._opened().hand_over(seconds)

    def close(self) -> None:
        """Stops the loader and gives its memory back. The next pass goes on where this one stands, also where it was left by `break`."""
        self._end()
        self._goes_on = True

    def _end(self):
        if self._loader is not None:
            self._state = self._loader.state_dict()
            self._loader.close()
            self._loader = None

    def __getstate__(self):
        """What goes to another process: where it stands, and neither its threads nor its rank. There the pass goes on."""
        state = dict(self.__dict__, _loader=None, _goes_on=True, _ranks=self._given_ranks, _peers=None)
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
    torch.distributed.all_gather_object(ranks, (socket.gethostname(), host, f"{node}={own}" if node else own))
    for rank, (name, address, _) in enumerate(ranks):
        # On every rank alike, so that none waits for those that refuse.
        if address.startswith("127.") and len({name for name, *_ in ranks}) > 1:
            hint = "set MASTER_ADDR to an address of its node that is not in 127.0.0.0/8 (/etc/hosts may have its name there), or pass peers=[…]"
            raise UsageError(f"the address of rank {rank} on {name} is {address}, which other hosts cannot reach; {hint}", hint=hint)
    return [peer for *_, peer in ranks]


def _is_distributed():
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _ranks():
    if _is_distributed():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    world = _number("WORLD_SIZE", 1)
    if world > 1 and "RANK" not in os.environ:
        hint = "call torch.distributed.init_process_group first, or pass rank= and world="
        raise UsageError(f"WORLD_SIZE is {world} and RANK is not set: each process would be rank 0; {hint}", hint=hint)
    return _number("RANK", 0), world


def _number(variable, default):
    text = os.environ.get(variable, str(default))
    if not text.isdecimal():
        hint = "set it to a number, as torchrun does, or pass rank= and world="
        raise UsageError(f"the environment has {variable}='{text}'; {hint}", hint=hint)
    return int(text)
