"""Streams the objects of a bucket into batches, in an order that is a function of a seed.

>>> import fuelrail
>>> with fuelrail.Loader("s3://bucket/training/", batch_size=256, decode="224x224x3") as loader:
...     for batch in loader:
...         images, labels = batch.numpy(), batch.labels

`fuelrail.torch` has the data set for PyTorch; importing `fuelrail` imports neither torch nor numpy.
"""

from fuelrail._errors import BudgetError, DeniedError, Error, NetworkError, NotFoundError, UsageError
from fuelrail._fuelrail import Batch, DeviceBatch, Loader, __version__

# As type checkers take it; to import `typing` would take longer than all the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from fuelrail._arrays import arrays as arrays

# Not `arrays`, which is imported when it is used: it needs numpy.
__all__ = [
    "Batch",
    "BudgetError",
    "DeniedError",
    "DeviceBatch",
    "Error",
    "Loader",
    "NetworkError",
    "NotFoundError",
    "UsageError",
    "__version__",
]


def __getattr__(name):
    if name == "torch":
        import importlib

        return importlib.import_module("fuelrail.torch")
    if name == "arrays":
        from fuelrail._arrays import arrays

        return arrays
    raise AttributeError(f"module 'fuelrail' has no attribute '{name}'")
